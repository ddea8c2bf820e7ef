#pragma once
// A poller whose peer is any thread that calls Ring(): a counter to read and, when armed, an
// eventfd to ring. With `always_rings` it behaves as a socket: it rings whether armed or not, and
// what has come is in the descriptor.
#include <sys/eventfd.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <functional>

#include "rpc/reactor/reactor.h"

namespace verbena::reactor {

class FakePoller final : public Poller {
 public:
  FakePoller() = default;
  ~FakePoller() { ::close(fd_); }

  // The peer's side. Any thread.
  void Ring() {
    if (!always_rings) arrived_.fetch_add(1);
    if (always_rings || armed_.exchange(false)) {
      const uint64_t one = 1;
      (void)!::write(fd_, &one, sizeof(one));
      rings.fetch_add(1);
    }
  }

  bool Poll(int64_t) override {
    polls.fetch_add(1, std::memory_order_relaxed);
    if (on_poll) on_poll();
    bool active = false;
    if (always_rings) arrived_.fetch_add(Clear());
    while (seen_ != arrived_.load()) {
      ++seen_;
      active = true;
      if (on_message) on_message();
    }
    if (work_left_ > 0) {
      active = true;
      if (--work_left_ == 0 && on_worked) on_worked();
    }
    return active;
  }
  void Flush() override { flushes.fetch_add(1, std::memory_order_relaxed); }
  // Work of this side's that polls do: so many, then `on_worked`.
  void Work(uint64_t polls_needed) { work_left_ = polls_needed; }
  // Something is under way that nothing rings for, such as a copy by a device.
  std::atomic<bool> under_way{false};
  bool HasLater() const override { return work_left_ > 0 || under_way.load(); }
  bool Arm() override {
    arms.fetch_add(1, std::memory_order_relaxed);
    armed_.store(true);
    return seen_ != arrived_.load() || HasLater();
  }
  void Disarm() override {
    armed_.store(false);
    if (!always_rings) Clear();
  }
  int fd() const override { return fd_; }
  int64_t expects_until_ns() const override { return expects_until_ns_.load(); }
  bool PeerOnThisCpu() const override { return peer_on_this_cpu; }
  bool Awaits() const override { return awaits.load(); }

  bool armed() const { return armed_.load(); }
  void ExpectUntil(int64_t due_ns) { expects_until_ns_.store(due_ns); }

  std::function<void()> on_poll, on_message, on_worked;
  bool always_rings = false;
  bool peer_on_this_cpu = false;
  std::atomic<bool> awaits{true};  // somebody may wait for a peer whom no caller knows
  std::atomic<uint64_t> polls{0}, flushes{0}, arms{0}, rings{0};

 private:
  uint64_t Clear() {
    uint64_t count = 0;
    return ::read(fd_, &count, sizeof(count)) == sizeof(count) ? count : 0;
  }
  const int fd_ = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
  std::atomic<uint64_t> arrived_{0};
  std::atomic<bool> armed_{false};
  uint64_t seen_ = 0;
  uint64_t work_left_ = 0;
  std::atomic<int64_t> expects_until_ns_{0};
};

// Sets `done` and wakes whoever waits for it. In the seat. The waiter may destroy the caller's
// object at once, so this is the last thing that the caller does.
inline void Finish(Reactor& reactor, std::atomic<uint32_t>& done) {
  done.store(1);
  reactor.Wake(done);
}

// Work that runs a function.
struct FunctionWork : Work {
  explicit FunctionWork(std::function<void()> f)
      : Work([](Work* work) { static_cast<FunctionWork*>(work)->function(); }),
        function(std::move(f)) {}
  std::function<void()> function;
};

struct FunctionTimer : Timer {
  explicit FunctionTimer(std::function<void()> f)
      : Timer([](Timer* timer) { static_cast<FunctionTimer*>(timer)->function(); }),
        function(std::move(f)) {}
  std::function<void()> function;
};

}  // namespace verbena::reactor
