// The watch thread: an epoll loop for what is rare.
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <utility>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/reactor/start_thread.h"

namespace verbena::reactor {
namespace {

using FdCallback = absl::AnyInvocable<void(uint32_t events)>;

struct Entry {
  int fd = -1;
  FdCallback callback;
};

class Loop {
 public:
  static Loop& Get() {
    static auto* loop = new Loop;
    return *loop;
  }

  void PostAt(int64_t due_ns, Job job) {
    if (Forked()) return;
    std::lock_guard lock(mutex_);
    const bool first = jobs_.empty() || due_ns < jobs_.begin()->first;
    if (spare_.empty()) {
      jobs_.emplace(due_ns, std::move(job));
    } else {
      spare_.key() = due_ns;
      spare_.mapped() = std::move(job);
      jobs_.insert(std::move(spare_));
    }
    StartLocked();
    if (first) WakeLocked();
  }

  void AddFd(int fd, uint32_t events, FdCallback callback) {
    if (Forked()) return;
    std::lock_guard lock(mutex_);
    StartLocked();
    const uint64_t id = ++last_id_;
    VERBENA_CHECK(ids_.emplace(fd, id).second, "fd ", fd, " is watched already");
    entries_.emplace(id, std::make_shared<Entry>(Entry{fd, std::move(callback)}));
    epoll_event event{.events = events, .data = {.u64 = id}};
    VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fd, &event) == 0, "fd ", fd, ": ",
                  std::strerror(errno));
  }

  void ModifyFd(int fd, uint32_t events) {
    if (Forked()) return;
    std::lock_guard lock(mutex_);
    const auto id = ids_.find(fd);
    if (id == ids_.end()) return;  // removed meanwhile by another thread
    epoll_event event{.events = events, .data = {.u64 = id->second}};
    VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_MOD, fd, &event) == 0, "fd ", fd, ": ",
                  std::strerror(errno));
  }

  void RemoveFd(int fd) {
    if (Forked()) return;
    std::shared_ptr<Entry> entry;  // destroyed without the lock
    std::unique_lock lock(mutex_);
    const auto found = ids_.find(fd);
    if (found == ids_.end()) return;
    const uint64_t id = found->second;
    ids_.erase(found);
    entry = std::move(entries_[id]);
    entries_.erase(id);
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr);
    if (on_thread_) return;
    while (running_id_ == id) ran_.wait(lock);
  }

  static bool OnThread() { return on_thread_; }

 private:
  Loop()
      : epoll_fd_(epoll_create1(EPOLL_CLOEXEC)), wake_fd_(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) {
    VERBENA_CHECK(epoll_fd_ >= 0 && wake_fd_ >= 0,
                  "no descriptors for the watch thread: ", std::strerror(errno));
    epoll_event event{.events = EPOLLIN, .data = {.u64 = 0}};
    VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, wake_fd_, &event) == 0, std::strerror(errno));
  }

  void StartLocked() {
    if (started_) return;
    started_ = true;
    WatchForFork();
    StartThread("verbena-watch", [this] { Run(); }).detach();
  }

  void WakeLocked() {
    const uint64_t one = 1;
    (void)!::write(wake_fd_, &one, sizeof(one));
  }

  [[noreturn]] void Run() {
    on_thread_ = true;
    for (;;) {
      RunDueJobs();
      epoll_event events[64];
      const int n = epoll_wait(epoll_fd_, events, 64, TimeoutMs());
      VERBENA_CHECK(n >= 0 || errno == EINTR, std::strerror(errno));
      for (int i = 0; i < n; ++i) {
        if (events[i].data.u64 == 0) {
          uint64_t count = 0;
          (void)!::read(wake_fd_, &count, sizeof(count));
        } else {
          RunCallback(events[i].data.u64, events[i].events);
        }
      }
    }
  }

  int TimeoutMs() {
    std::lock_guard lock(mutex_);
    if (jobs_.empty()) return -1;
    const int64_t wait_ns = jobs_.begin()->first - SteadyNs();
    return wait_ns <= 0 ? 0 : static_cast<int>(std::min<int64_t>(wait_ns / 1'000'000 + 1, 1 << 30));
  }

  void RunDueJobs() {
    {
      std::lock_guard lock(mutex_);
      const auto end = jobs_.upper_bound(SteadyNs());
      while (jobs_.begin() != end) {
        Jobs::node_type node = jobs_.extract(jobs_.begin());
        due_.push_back(std::move(node.mapped()));
        spare_ = std::move(node);
      }
    }
    for (Job& job : due_) {
      std::move(job)();
      job = nullptr;
    }
    due_.clear();
  }

  void RunCallback(uint64_t id, uint32_t events) {
    std::shared_ptr<Entry> entry;
    {
      std::lock_guard lock(mutex_);
      const auto found = entries_.find(id);
      if (found == entries_.end()) return;  // removed after the kernel reported it
      entry = found->second;
      running_id_ = id;
    }
    entry->callback(events);
    {
      std::lock_guard lock(mutex_);
      running_id_ = 0;
    }
    ran_.notify_all();
  }

  static thread_local bool on_thread_;
  const int epoll_fd_;
  const int wake_fd_;
  std::mutex mutex_;
  std::condition_variable ran_;
  bool started_ = false;
  uint64_t last_id_ = 0;
  uint64_t running_id_ = 0;
  std::unordered_map<int, uint64_t> ids_;
  std::unordered_map<uint64_t, std::shared_ptr<Entry>> entries_;
  using Jobs = std::multimap<int64_t, Job>;
  Jobs jobs_;  // by due time; equal times in the order of posting
  // What ran last, for the next: looking after stalls allocates nothing.
  Jobs::node_type spare_;
  std::vector<Job> due_;  // the thread's, while it runs them
};

thread_local bool Loop::on_thread_ = false;

}  // namespace

Watch& Watch::Get() {
  static Watch watch;
  return watch;
}

void Watch::Post(Job job) { Loop::Get().PostAt(SteadyNs(), std::move(job)); }
void Watch::PostAfter(absl::Duration delay, Job job) {
  Loop::Get().PostAt(AfterNs(SteadyNs(), absl::ToInt64Nanoseconds(delay)), std::move(job));
}
void Watch::AddFd(int fd, uint32_t events, absl::AnyInvocable<void(uint32_t events)> callback) {
  Loop::Get().AddFd(fd, events, std::move(callback));
}
void Watch::ModifyFd(int fd, uint32_t events) { Loop::Get().ModifyFd(fd, events); }
void Watch::RemoveFd(int fd) { Loop::Get().RemoveFd(fd); }
bool Watch::OnWatchThread() const { return Loop::OnThread(); }

}  // namespace verbena::reactor
