#pragma once
// internal::WorkerPool: threads for methods marked blocking. A bounded queue; threads start when
// they are needed.
#include <deque>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"

namespace verbena::internal {

class WorkerPool {
 public:
  using Job = absl::AnyInvocable<void() &&>;
  WorkerPool(size_t threads_max, size_t queued_max)
      : threads_max_(threads_max), queued_max_(queued_max) {}
  // Runs what is queued, then joins.
  ~WorkerPool();
  WorkerPool(const WorkerPool&) = delete;
  WorkerPool& operator=(const WorkerPool&) = delete;

  // False: the queue is full; `job` is untouched. Any thread.
  bool Submit(Job& job);
  size_t queued_max() const { return queued_max_; }
  // Whether this is one of its threads.
  bool OnWorker() const { return current_ == this; }

 private:
  void Work();
  bool MayGoOn() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return !queue_.empty() || stopping_;
  }
  static thread_local const WorkerPool* current_;
  const size_t threads_max_;
  const size_t queued_max_;
  absl::Mutex mutex_;
  std::deque<Job> queue_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<std::thread> threads_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace verbena::internal
