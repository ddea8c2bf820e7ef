// The reactor's own thread: work, spin, sleep.
#include <sched.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/reactor/futex.h"
#include "rpc/reactor/impl.h"
#include "rpc/reactor/thread_tags.h"
#include "rpc/topology/topology.h"

namespace verbena::reactor {
namespace {

// Looks at the seat before sleeping on it: a driver gives it up at the end of its tick, mostly
// below 1 µs.
constexpr int kSeatSpins = 200;
// Entries by callers that switch the watch of descriptors off (two system calls each) after the
// thread was woken although a caller drives: the first when that is rare, up to the last when it
// happens again as soon as they are used up.
constexpr uint32_t kNoisyEntriesMin = 8;
constexpr uint32_t kNoisyEntriesMax = 1024;
constexpr uint32_t kQuietEntries = 64;
// Looks for a caller that takes the seat (0.5-1 µs each) before the thread does.
constexpr int kYieldsToCaller = 8;
// Between looks at whether callers still drive. Lower, and their calls are interrupted more often
// (each look costs them some microseconds; at this, less than one in a hundred calls over tcp);
// higher, and what a peer sends after the last call, which nobody waits for, is seen later.
constexpr int kDozeMs = 2;

}  // namespace

void Reactor::Impl::ThreadMain() {
  tls_current = &reactor;
  Pin();
  TakeForThread();
  bool spin = true;
  while (WorkUntilIdle(spin)) spin = SleepUntilNeeded();
  tls_current = nullptr;
}

void Reactor::Impl::Pin() {
  const ReactorOptions& options = reactor.options_;
  if (!options.pin) return;
  absl::Status status;
  if (options.cpu >= 0) {
    status = topology::PinThread({options.cpu});
  } else {
    const topology::Topology& machine = topology::Topology::Get();
    if (machine.nodes().size() == 1) return;  // where it may run is what the process was given
    const topology::Node* const node = machine.FindNode(options.numa_node);
    status =
        node != nullptr
            ? topology::PinThread(node->cpus)
            : absl::NotFoundError(absl::StrCat("no usable CPU on NUMA node ", options.numa_node));
  }
  if (!status.ok()) {
    VERBENA_LOG(kWarning, "reactor ", options.name, " runs unpinned: ", status.message());
  }
}

void Reactor::Impl::TakeForThread() {
  if (!TryTake()) {
    thread_wants.store(kWants);
    bool taken = false;
    for (int i = 0; i < kSeatSpins && !(taken = TryTake()); ++i) CpuPause();
    while (!taken) {
      thread_wants.store(kParked);
      if ((taken = TryTake())) break;
      FutexWait(thread_wants, kParked);
    }
    thread_wants.store(kNo);
  }
  needed.store(false);
  Entered();
}

bool Reactor::Impl::WorkUntilIdle(bool spin_first) {
  stall->Awake();
  Spin spin;
  spin.Restart(spin_first ? reactor.now_ns_ : reactor.now_ns_ - spin_ns);
  while (!stop.load(std::memory_order_relaxed)) {
    if (Tick(true)) {
      if (spin_first || ThreadHasWork()) spin.Restart(reactor.now_ns_);
    } else if ((heir.load(std::memory_order_relaxed) || SpinStep(spin)) && TryFallAsleep()) {
      return true;
    }
    spin_first = true;
  }
  ReleaseSeat();
  return false;
}

bool Reactor::Impl::ThreadHasWork() const {
  return !inbox.Empty() || needed.load() || user_first != nullptr || stop.load();
}

// In the seat. True: without it, and whatever happens from now on wakes this thread or finds
// another driver. To a caller who waits for the seat it goes unarmed too: one that is awake drives
// what is under way, else it would park, and be woken for its result.
bool Reactor::Impl::TryFallAsleep() {
  const bool quiet = ArmAll();
  if (!quiet && !heir.load()) return false;
  thread_asleep.store(true);
  if (ThreadHasWork()) {
    thread_asleep.store(false);
    if (quiet) DisarmAll();
    return false;
  }
  if (!quiet) drive_wanted.store(true);  // this thread goes on where nobody takes it
  stall->Asleep();
  SetTimer();
  ReleaseSeat();
  if (!seat_queue.Empty() && TryEnter()) {
    thread_asleep.store(false);
    return false;
  }
  return true;
}

// Without the seat, until something rings or `timeout_ms` are over.
Reactor::Impl::Woke Reactor::Impl::SleepOnce(int timeout_ms) {
  epoll_event events[8];
  const int n = epoll_wait(epoll_fd, events, 8, timeout_ms);
  VERBENA_CHECK(n >= 0 || errno == EINTR, std::strerror(errno));
  thread_asleep.store(false);
  Woke woke;
  for (int i = 0; i < n; ++i) {
    uint64_t count = 0;
    if (events[i].data.u64 == kWakeTag) {
      (void)!::read(wake_fd, &count, sizeof(count));
    } else if (events[i].data.u64 == kTimerTag) {
      (void)!::read(timer_fd, &count, sizeof(count));
      woke.timer = true;
    } else {
      woke.rang = true;
    }
  }
  if (woke.rang) {  // one-shot: the kernel has switched it off
    std::lock_guard lock(watch_mutex);
    watch_on.store(false);
  }
  return woke;
}

// Returns in the seat. False: a timer was all that happened, no reason to spin.
bool Reactor::Impl::SleepUntilNeeded() {
  uint32_t seen_entries = entries.load();
  for (;;) {
    const bool dozed = dozing.load();
    const Woke woke = SleepOnce(drive_wanted.load() ? 0 : dozed ? kDozeMs : -1);
    const bool work = !inbox.Empty() || needed.load() || stop.load();
    const uint32_t entered = entries.load();
    const bool callers_come = dozed && std::exchange(seen_entries, entered) != entered;
    const bool asked = doze_asked.exchange(false);
    if (work || woke.timer || woke.rang || (!callers_come && !asked) || drive_wanted.load()) {
      // Before the seat is looked at: a caller who has not seen this, and leaves it unarmed, has
      // left.
      dozing.store(false);
      if (work || woke.timer) {
        TakeForThread();
        if (woke.timer) timer_set_ns = 0;
        return work || woke.rang;
      }
      if (drive_wanted.load()) YieldToCaller();
      if (TryTake()) {
        Entered();
        return woke.rang || !dozed;
      }
    }
    // A caller drives: it sees by itself what rang, and says so when it leaves work behind. One
    // that has said so, and is about to leave, is waited for: the next look does not sleep.
    if (woke.rang) OnStrayWake();
    dozing.store(true);
    thread_asleep.store(true);
    if (!inbox.Empty() || needed.load() || stop.load()) {
      thread_asleep.store(false);
      dozing.store(false);
      TakeForThread();
      return true;
    }
  }
}

// Who has just left work behind mostly comes back at once, to wait for it: then it drives.
void Reactor::Impl::YieldToCaller() {
  for (int i = 0; i < kYieldsToCaller && drive_wanted.load(); ++i) sched_yield();
}

void Reactor::Impl::OnStrayWake() {
  const uint32_t granted = noisy_granted.load(std::memory_order_relaxed);
  const bool again = quiet_entries.load(std::memory_order_relaxed) < kQuietEntries;
  const uint32_t grant =
      again ? std::clamp(2 * granted, kNoisyEntriesMin, kNoisyEntriesMax) : kNoisyEntriesMin;
  noisy_granted.store(grant, std::memory_order_relaxed);
  quiet_entries.store(0, std::memory_order_relaxed);
  noisy.store(grant, std::memory_order_relaxed);
}

void Reactor::Impl::WakeThread() {
  if (wake_fd < 0 || !thread_asleep.load() || !thread_asleep.exchange(false)) return;
  const uint64_t one = 1;
  (void)!::write(wake_fd, &one, sizeof(one));
}

}  // namespace verbena::reactor
