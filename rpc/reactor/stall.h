#pragma once
// Reports user code that holds a reactor too long, by name, while it still runs: the watch thread
// looks at what the reactor says it runs. Looks only while the reactor is awake, so an idle process
// has no timer ticking.
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/time/time.h"

namespace verbena::reactor {

class StallWatch : public std::enable_shared_from_this<StallWatch> {
 public:
  StallWatch(std::string reactor_name, absl::Duration threshold)
      : name_(std::move(reactor_name)), threshold_(threshold) {}

  // The reactor's own thread. Some ns each.
  void Begin(const char* method) {
    method_.store(method, std::memory_order_relaxed);
    sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  void End() {
    method_.store(nullptr, std::memory_order_relaxed);
    sequence_.store(sequence_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
  }
  // The reactor's own thread wakes up, or falls asleep for long.
  void Awake();
  void Asleep() { awake_.store(false); }
  // Any thread. No report comes after it, except one being written.
  void Stop() { stopped_.store(true); }

 private:
  void Schedule();
  void Look();

  const std::string name_;
  const absl::Duration threshold_;
  std::atomic<const char*> method_{nullptr};
  std::atomic<uint64_t> sequence_{0};
  std::atomic<bool> awake_{false};
  std::atomic<bool> scheduled_{false};
  std::atomic<bool> stopped_{false};
  // The watch thread's.
  uint64_t seen_sequence_ = 0;
  int64_t seen_since_ns_ = 0;
  bool reported_ = false;
  int64_t last_report_ns_ = 0;
  uint64_t unreported_ = 0;
};

}  // namespace verbena::reactor
