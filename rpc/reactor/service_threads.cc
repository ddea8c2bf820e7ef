#include "rpc/reactor/service_threads.h"

#include <condition_variable>
#include <deque>
#include <mutex>
#include <utility>

#include "rpc/base/fork.h"
#include "rpc/reactor/start_thread.h"

namespace verbena::reactor {
namespace {

// A thread that runs jobs one at a time, in order. Started by the first job; never ends: there is
// one of each per process.
class JobThread {
 public:
  explicit JobThread(const char* name) : name_(name) {}

  void Post(Job job) {
    if (Forked()) return;
    std::lock_guard lock(mutex_);
    jobs_.push_back(std::move(job));
    if (started_) return ready_.notify_one();
    started_ = true;
    WatchForFork();
    StartThread(name_, [this] { Run(); }).detach();
  }

  bool OnThread() const { return current_ == this; }

 private:
  void Run() {
    current_ = this;
    std::unique_lock lock(mutex_);
    for (;;) {
      while (jobs_.empty()) ready_.wait(lock);
      {
        Job job = std::move(jobs_.front());
        jobs_.pop_front();
        lock.unlock();
        std::move(job)();
      }  // what the job held is destroyed without the lock
      lock.lock();
    }
  }

  static thread_local const JobThread* current_;
  const char* const name_;
  std::mutex mutex_;
  std::condition_variable ready_;
  std::deque<Job> jobs_;  // unbounded: the posters bound it (links and leases are counted)
  bool started_ = false;
};

thread_local const JobThread* JobThread::current_ = nullptr;

JobThread& SetupThread() {
  static auto* thread = new JobThread("verbena-setup");
  return *thread;
}
JobThread& GrowthThread() {
  static auto* thread = new JobThread("verbena-memory");
  return *thread;
}
JobThread& DisposalThread() {
  static auto* thread = new JobThread("verbena-dispose");
  return *thread;
}
JobThread& CopiesThread() {
  static auto* thread = new JobThread("verbena-copies");
  return *thread;
}
JobThread& ResolverThread() {
  static auto* thread = new JobThread("verbena-resolve");
  return *thread;
}

}  // namespace

void PostSetup(Job job) { SetupThread().Post(std::move(job)); }
void PostDisposal(Job job) { DisposalThread().Post(std::move(job)); }
void PostResolve(Job job) { ResolverThread().Post(std::move(job)); }
void PostCopies(Job job) { CopiesThread().Post(std::move(job)); }
bool OnSetupThread() { return SetupThread().OnThread(); }
void PostGrowth(Job job) { GrowthThread().Post(std::move(job)); }
bool OnGrowthThread() { return GrowthThread().OnThread(); }

}  // namespace verbena::reactor
