// Taking and leaving the driver seat. A blocking caller does both once per call, so this is the
// message path.
#include <sys/epoll.h>
#include <sys/timerfd.h>

#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/base/slowdown.h"
#include "rpc/reactor/futex.h"
#include "rpc/reactor/impl.h"
#include "rpc/reactor/thread_tags.h"

namespace verbena::reactor {
namespace {

// How long a thread works on what it has just begun, before it leaves the seat and wakes the
// reactor's thread for it (26-43 µs where that has slept). Lower, and a caller that starts a
// transfer of a megabyte and then waits for it shares it with that thread; higher, and a caller
// that does not wait is held up for longer.
constexpr int64_t kFinishNs = 200'000;
// Callers who leave so soon after one another, so often, are taken to go on. Fewer, and short runs
// of calls wake the own thread; more, and the first calls of a long run take longer.
const int64_t kAgainNs = int64_t{50'000} * kSlowdown;
constexpr uint32_t kLeavesToDoze = 256;

}  // namespace

constinit thread_local char tls_token = 0;

void Reactor::Impl::TakeBack() {
  if (!Reclaim()) TakeForThread();
}

void Reactor::Impl::Entered() {
  entries.store(entries.load(std::memory_order_relaxed) + 1, std::memory_order_relaxed);
  if (drive_wanted.load(std::memory_order_relaxed)) drive_wanted.store(false);
  if (rearm.load(std::memory_order_relaxed)) rearm.store(false);  // Leave arms
  if (armed) DisarmAll();
  const uint32_t left = noisy.load(std::memory_order_relaxed);
  if (left == 0) {
    quiet_entries.store(quiet_entries.load(std::memory_order_relaxed) + 1,
                        std::memory_order_relaxed);
  } else if (tls_current != &reactor) {
    noisy.store(left - 1, std::memory_order_relaxed);
    if (watch_on.load()) WatchOff();
  }
  reactor.now_ns_ = Clock();
}

bool Reactor::Impl::TryEnter() {
  if (Forked()) return false;
  if (tls_current == &reactor && in_user_code && Reclaim()) return true;
  if (!TryTake()) return false;
  Entered();
  return true;
}

void Reactor::Impl::Leave() {
  VERBENA_DCHECK(reactor.InSeat());
  const bool own = tls_current == &reactor;
  if (own && in_user_code) {  // the tick goes on after the user code
    DrainSeatQueue();
    // A caller that sleeps needs the pollers armed: this code may run for long, or wait for what
    // that caller does next.
    if (sleeper.load() == nullptr) return Lend();
  }
  do {
    DrainSeatQueue();
    FlushAll();
    if (MayLeaveLazily()) {
      SetTimer();
      ReleaseSeat(true);
      continue;
    }
    if (!own) CountLeave();
    // When the own thread waits for the seat, it looks at everything itself.
    if (thread_wants.load(std::memory_order_relaxed) == kNo) {
      bool quiet = ArmAll();
      if (!quiet) {
        Tick(false);
        quiet = ArmAll();
      }
      // Traffic goes on. A caller that sleeps takes over: the own thread may be in user code.
      if (!quiet && (own || sleeper.load() != nullptr)) waiters.WakePolling();
      if (!quiet && !own && reactor.options_.thread) {  // or the own thread does
        drive_wanted.store(true);
        WakeThread();
      }
    }
    SetTimer();
    ReleaseSeat();
  } while (!seat_queue.Empty() && TryEnter());
}

// Arming is a write to what the peer reads after each message, on the way of the next one. A caller
// who comes again and again has the own thread doze, and then arms nothing.
void Reactor::Impl::CountLeave() {
  const bool again = reactor.now_ns_ - left_ns < kAgainNs;
  left_ns = reactor.now_ns_;
  leaves = again ? leaves + 1 : 0;
  if (leaves < kLeavesToDoze || dozing.load(std::memory_order_relaxed) || !thread_asleep.load() ||
      Awaits()) {
    return;
  }
  leaves = 0;
  doze_asked.store(true);
  WakeThread();
}

// What this thread has begun is mostly over sooner than another would be awake to do it.
void Reactor::Impl::FinishLater() {
  const int64_t start_ns = reactor.now_ns_;
  while (HasLater() && thread_wants.load(std::memory_order_relaxed) == kNo && Tick(false) &&
         reactor.now_ns_ - start_ns <= kFinishNs) {
  }
}

bool Reactor::Impl::HasLater() const {
  bool later = false;
  for (const Poller* poller : pollers) later |= poller->HasLater();
  return later;
}

bool Reactor::Impl::Dozes() const {
  return dozing.load(std::memory_order_relaxed) && !armed && !watch_on.load() && !waiters.any() &&
         !Awaits();
}

bool Reactor::Impl::Awaits() const {
  for (const Poller* poller : pollers) {
    if (poller->Awaits()) return true;
  }
  return false;
}

void Reactor::Impl::WorkInSeat(Work* first) {
  const auto work = [&] {
    if (first != nullptr) {
      Work* const now = std::exchange(first, nullptr);
      now->run(now);
    }
    DrainSeatQueue();
    FlushAll();
  };
  do {
    if (!rearm.load() && Dozes()) {
      // What is started here is all that there is, unless something is left to do afterwards. Who
      // has started it comes back to drive, or calls Attend.
      reactor.now_ns_ = Clock();
      work();
      if (!rearm.load() && !HasLater()) {
        SetTimer();
        ReleaseSeat(true);
        continue;
      }
    }
    if (armed && !rearm.load()) {
      reactor.now_ns_ = Clock();
      work();
      if (!rearm.load() && !HasLater()) {
        SetTimer();
        ReleaseSeat();
        continue;
      }
    }
    Entered();
    work();
    if (reactor.options_.thread) FinishLater();
    Leave();
  } while (!seat_queue.Empty() && !Forked() && TryTake());
}

void Reactor::Impl::ReleaseSeat(bool lazily) {
  seat.exchange(nullptr);
  const uint32_t wants = thread_wants.load();
  if (wants != kNo) {
    uint32_t parked = kParked;
    if (wants == kParked && thread_wants.compare_exchange_strong(parked, kWants)) {
      FutexWakeOne(thread_wants);
    }
    return;
  }
  if (lazily) {
    if (attend.load() && attend.exchange(false) && TryEnter()) Leave();
    return;
  }
  if (!watch_on.load() && sleeper.load() == nullptr) WatchOn();
}

bool Reactor::Impl::ArmAll() {
  armed = true;
  bool again = false;
  for (Poller* poller : pollers) again |= poller->Arm();
  if (again) DisarmAll();
  return !again;
}

void Reactor::Impl::DisarmAll() {
  for (Poller* poller : pollers) poller->Disarm();
  armed = false;
}

void Reactor::Impl::FlushAll() {
  for (Poller* poller : pollers) poller->Flush();
}

void Reactor::Impl::SetTimer() {
  if (timer_fd < 0 || timers.empty()) return;
  const int64_t due_ns = timers.first_due_ns();
  // An earlier setting stays: the thread then wakes for nothing and sets the next, which is cheaper
  // than a system call per deadline here.
  if (timer_set_ns != 0 && timer_set_ns <= due_ns) return;
  const int64_t delay_ns = std::max<int64_t>(due_ns - SteadyNs(), 1);
  itimerspec spec{};
  spec.it_value.tv_sec = delay_ns / 1'000'000'000;
  spec.it_value.tv_nsec = delay_ns % 1'000'000'000;
  VERBENA_CHECK(timerfd_settime(timer_fd, 0, &spec, nullptr) == 0, delay_ns, " ns");
  timer_set_ns = due_ns;
}

void Reactor::Impl::WatchOn() {
  std::lock_guard lock(watch_mutex);
  watch_on.store(true);
  for (int fd : watched) {
    epoll_event event{.events = EPOLLIN | EPOLLONESHOT, .data = {.u64 = kPollerTag}};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
  }
}

void Reactor::Impl::WatchOff() {
  std::lock_guard lock(watch_mutex);
  watch_on.store(false);
  for (int fd : watched) {
    epoll_event event{.events = 0, .data = {.u64 = kPollerTag}};
    epoll_ctl(epoll_fd, EPOLL_CTL_MOD, fd, &event);
  }
}

}  // namespace verbena::reactor
