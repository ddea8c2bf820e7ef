#pragma once
// What other threads have for a fabric's reactor: results of the setup thread's jobs, events of the
// device. Each is a closure that the fabric runs in its next poll. Jobs share the inbox, so it may
// outlive its fabric; what is left in it then is destroyed unrun.
#include <atomic>
#include <mutex>
#include <vector>

#include "absl/functional/any_invocable.h"

namespace verbena::fabric::verbs {

class Inbox {
 public:
  using News = absl::AnyInvocable<void() &&>;

  // Where there is no descriptor for the bell, error() is its errno, and nothing may be pushed.
  Inbox();
  ~Inbox();
  Inbox(const Inbox&) = delete;
  Inbox& operator=(const Inbox&) = delete;

  // Any thread; never blocks for longer than the lock.
  void Push(News news);
  // Reactor thread only.
  bool any() const { return any_.load(std::memory_order_acquire); }
  std::vector<News> Take();
  // Readable while there may be news.
  int bell() const { return bell_; }
  int error() const { return error_; }

 private:
  const int bell_;
  const int error_;
  std::atomic<bool> any_{false};
  std::mutex mutex_;
  std::vector<News> news_;
};

}  // namespace verbena::fabric::verbs
