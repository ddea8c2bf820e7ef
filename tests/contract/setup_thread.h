#pragma once
// A thread that runs jobs in order, as the process's setup thread does.
#include <condition_variable>
#include <deque>
#include <future>
#include <mutex>
#include <thread>
#include <utility>

#include "absl/functional/any_invocable.h"

namespace verbena::contract {

class SetupThread {
 public:
  using Job = absl::AnyInvocable<void() &&>;

  SetupThread() : thread_([this] { Run(); }) {}
  // Runs what is queued first.
  ~SetupThread() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    changed_.notify_one();
    thread_.join();
  }

  void Post(Job job) {
    {
      const std::lock_guard lock(mutex_);
      jobs_.push_back(std::move(job));
    }
    changed_.notify_one();
  }

  // Returns when all that was posted before has run.
  void Settle() {
    std::promise<void> reached;
    Post([&reached] { reached.set_value(); });
    reached.get_future().wait();
  }

 private:
  void Run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (jobs_.empty()) return;
      Job job = std::move(jobs_.front());
      jobs_.pop_front();
      lock.unlock();
      std::move(job)();
      job = nullptr;  // what it holds goes here too
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<Job> jobs_;
  bool stop_ = false;
  std::thread thread_;
};

}  // namespace verbena::contract
