#include "rpc/fabric/verbs/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>
#include <utility>

namespace verbena::fabric::verbs {

Inbox::Inbox() : bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)), error_(bell_ < 0 ? errno : 0) {}

Inbox::~Inbox() {
  if (bell_ >= 0) close(bell_);
}

void Inbox::Push(News news) {
  const std::lock_guard lock(mutex_);
  news_.push_back(std::move(news));
  if (any_.exchange(true, std::memory_order_release)) return;
  const uint64_t one = 1;
  // It never fills up.
  [[maybe_unused]] const ssize_t n = write(bell_, &one, sizeof one);
}

std::vector<Inbox::News> Inbox::Take() {
  const std::lock_guard lock(mutex_);
  uint64_t rung;
  [[maybe_unused]] const ssize_t n = read(bell_, &rung, sizeof rung);
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(news_, {});
}

}  // namespace verbena::fabric::verbs
