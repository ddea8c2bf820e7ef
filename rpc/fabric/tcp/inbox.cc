#include "rpc/fabric/tcp/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "rpc/base/check.h"

namespace verbena::fabric::tcp {

Inbox::Inbox() : bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  VERBENA_CHECK(bell_ >= 0, "eventfd: errno ", errno);
}

Inbox::~Inbox() {
  Close();
  close(bell_);
}

void Inbox::Post(const LaneNews& news) {
  const std::lock_guard lock(mutex_);
  if (closed_) {
    if (news.fd >= 0) close(news.fd);
    return;
  }
  news_.push_back(news);
  any_.store(true, std::memory_order_release);
  const uint64_t one = 1;
  // A full counter is as readable as any.
  [[maybe_unused]] const ssize_t n = write(bell_, &one, sizeof one);
}

std::vector<LaneNews> Inbox::Take() {
  const std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_relaxed);
  uint64_t rings = 0;
  [[maybe_unused]] const ssize_t n = read(bell_, &rings, sizeof rings);
  return std::exchange(news_, {});
}

void Inbox::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
  for (const LaneNews& news : news_) {
    if (news.fd >= 0) close(news.fd);
  }
  news_.clear();
}

}  // namespace verbena::fabric::tcp
