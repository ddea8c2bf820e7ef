#include "rpc/fabric/shm/inbox.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "rpc/base/check.h"

namespace verbena::fabric::shm {

Inbox::Inbox()
    : bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)),
      own_bell_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  VERBENA_CHECK(bell_ >= 0 && own_bell_ >= 0, "eventfd: errno ", errno);
}

Inbox::~Inbox() {
  close(bell_);
  close(own_bell_);
}

void Inbox::Push(JobResult result) {
  {
    const std::lock_guard lock(mutex_);
    results_.push_back(std::move(result));
    any_.store(true, std::memory_order_release);
  }
  const uint64_t one = 1;
  // It never fills up.
  [[maybe_unused]] const ssize_t n = write(own_bell_, &one, sizeof one);
}

std::vector<JobResult> Inbox::Take() {
  const std::lock_guard lock(mutex_);
  any_.store(false, std::memory_order_relaxed);
  return std::exchange(results_, {});
}

}  // namespace verbena::fabric::shm
