#include "rpc/server/worker_pool.h"

#include <utility>

namespace verbena::internal {

thread_local const WorkerPool* WorkerPool::current_ = nullptr;

WorkerPool::~WorkerPool() {
  std::vector<std::thread> threads;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    threads.swap(threads_);
  }
  for (std::thread& thread : threads) thread.join();
}

bool WorkerPool::Submit(Job& job) {
  absl::MutexLock lock(&mutex_);
  if (queue_.size() >= queued_max_) return false;
  queue_.push_back(std::move(job));
  if (idle_ < queue_.size() && threads_.size() < threads_max_)
    threads_.emplace_back([this] { Work(); });
  return true;
}

void WorkerPool::Work() {
  current_ = this;
  mutex_.Lock();
  for (;;) {
    ++idle_;
    mutex_.Await(absl::Condition(this, &WorkerPool::MayGoOn));
    --idle_;
    if (queue_.empty()) break;
    Job job = std::move(queue_.front());
    queue_.pop_front();
    mutex_.Unlock();
    std::move(job)();
    job = nullptr;
    mutex_.Lock();
  }
  mutex_.Unlock();
}

}  // namespace verbena::internal
