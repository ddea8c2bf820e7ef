// Blocked callers: one drives the loop, one may be next, the others are parked until their result
// is there.
#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>

#include "absl/container/inlined_vector.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/reactor/futex.h"
#include "rpc/reactor/impl.h"

namespace verbena::reactor {
namespace {

// After so long the next in line lets others run between its looks: there may be more threads than
// CPUs.
constexpr int64_t kHeirSpinNs = 5'000;
// Between a parked caller's looks at whether the seat is lent.
constexpr int64_t kParkNs = 5'000'000;

// What wakes this thread from poll(); made once per thread, at its first long wait.
struct ThreadEvent {
  int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  ~ThreadEvent() {
    if (fd >= 0) ::close(fd);
  }
};

bool IsSet(const std::atomic<uint32_t>& done) { return done.load(std::memory_order_acquire) != 0; }

}  // namespace

constinit thread_local const std::atomic<uint32_t>* tls_driving = nullptr;

bool Reactor::MayBlock(const std::atomic<uint32_t>& done) const {
  VERBENA_CHECK(tls_current == nullptr, "blocked on reactor ", options_.name, " on the thread of ",
                tls_current == nullptr ? "" : tls_current->options_.name);
  VERBENA_CHECK(!Forked() || IsSet(done), "reactor ", options_.name,
                " is used in a process forked from its own; exec there, or fork before the first ",
                "channel or server exists");
  return !IsSet(done);
}

void Reactor::WaitUntil(const std::atomic<uint32_t>& done) {
  if (!options_.thread) return DriveUntil(done);
  if (!MayBlock(done)) return;
  while (!IsSet(done)) impl_->Park(done);
}

void Reactor::DriveUntil(const std::atomic<uint32_t>& done) {
  if (!MayBlock(done) && (Forked() || !InSeat())) return;
  const std::atomic<uint32_t>* const outer = tls_driving;
  tls_driving = &done;
  bool seated = InSeat();
  if (!options_.thread) {
    if (seated) Leave();
    while (!IsSet(done)) {
      if (!Tick()) sched_yield();
    }
    tls_driving = outer;
    return;
  }
  if (seated)
    impl_->FlushAll();  // what the caller queued goes out before the first look for an answer
  while (!IsSet(done)) {
    if (!seated && !(seated = TryEnter())) seated = impl_->SpinAsHeir(done);
    if (!seated) {
      if (!IsSet(done)) impl_->Park(done);
      continue;
    }
    const Impl::Drove end = impl_->Drive(done);
    seated = false;
    if (end == Impl::Drove::kIdle) impl_->Park(done);
  }
  if (seated) Leave();
  tls_driving = outer;
}

Reactor::Impl::Drove Reactor::Impl::Drive(const std::atomic<uint32_t>& done) {
  Spin spin;
  spin.Restart(reactor.now_ns_);
  for (;;) {
    const bool active = Tick(false);
    if (IsSet(done)) {
      Leave();
      return Drove::kDone;
    }
    if (thread_wants.load(std::memory_order_relaxed) != kNo) {
      ReleaseSeat();  // to the own thread, which goes on where this left
      return Drove::kLostSeat;
    }
    if (active) {
      spin.Restart(reactor.now_ns_);
    } else if (SpinStep(spin)) {
      const Drove end = SleepDriving(done);
      if (end != Drove::kDriveOn) return end;
      spin.Restart(reactor.now_ns_);
    }
  }
}

// A timer wakes the own thread, which may be in user code for long: then this caller runs it, a
// little later.
int Reactor::Impl::PollTimeoutMs() const {
  if (timers.empty()) return -1;
  const int64_t left_ms = (timers.first_due_ns() - Clock()) / 1'000'000;
  return static_cast<int>(std::clamp<int64_t>(left_ms, 0, INT_MAX - 2)) + 2;
}

// In the seat, idle: leaves it and sleeps on the pollers' descriptors, unless somebody does
// already. Any thread may take the seat meanwhile. kDriveOn: awake and in the seat again.
Reactor::Impl::Drove Reactor::Impl::SleepDriving(const std::atomic<uint32_t>& done) {
  static thread_local ThreadEvent event;
  Waiter waiter(done);
  waiter.event_fd = event.fd;
  Waiter* nobody = nullptr;
  if (event.fd < 0 || !sleeper.compare_exchange_strong(nobody, &waiter)) {
    Leave();
    return Drove::kIdle;
  }
  if (watch_on.load()) WatchOff();  // this thread shall be woken, not the reactor's
  if (!ArmAll()) {
    sleeper.store(nullptr);
    return Drove::kDriveOn;
  }
  SetTimer();
  const int timeout_ms = PollTimeoutMs();
  waiter.state.store(Waiter::kPolling);
  waiters.Add(waiter);
  ReleaseSeat();
  if (done.load() == 0 && seat_queue.Empty()) {
    absl::InlinedVector<pollfd, 8> fds{{event.fd, POLLIN, 0}};
    {
      std::lock_guard lock(watch_mutex);
      for (int fd : watched) fds.push_back({fd, POLLIN, 0});
    }
    ::poll(fds.data(), fds.size(), timeout_ms);
  }
  waiters.Remove(waiter);
  uint64_t count = 0;
  if (waiter.state.load() == Waiter::kNotified) (void)!::read(event.fd, &count, sizeof(count));
  // In this order: a driver that leaves meanwhile either sees that nobody watches any more, and
  // makes the reactor's thread watch, or has left the seat for us.
  sleeper.store(nullptr);
  if (!TryEnter()) return Drove::kLostSeat;
  if (!IsSet(done)) return Drove::kDriveOn;
  Leave();
  return Drove::kDone;
}

// Waits for the seat or the result, one caller at a time and for `spin` at most. Whether it has the
// seat.
bool Reactor::Impl::SpinAsHeir(const std::atomic<uint32_t>& done) {
  if (heir.load(std::memory_order_relaxed) || heir.exchange(true)) return false;
  const int64_t start_ns = SteadyNs();
  bool seated = false;
  while (!IsSet(done) && !(seated = TryEnter())) {
    const int64_t waited_ns = SteadyNs() - start_ns;
    if (waited_ns >= spin_ns) break;
    if (waited_ns < kHeirSpinNs) {
      CpuPause();
    } else {
      sched_yield();
    }
  }
  heir.store(false);
  return seated;
}

// Whoever holds the seat, or the reactor's thread, notices the result and notifies. Returns now and
// then: the own thread may have lent the seat to run user code that takes long.
void Reactor::Impl::Park(const std::atomic<uint32_t>& done) {
  Waiter waiter(done);
  waiter.state.store(Waiter::kParked);
  waiters.Add(waiter);
  if (dozing.load() && TryEnter()) Leave();  // a caller may have left before it could see us
  if (done.load() == 0 && waiter.state.load() == Waiter::kParked) {
    FutexWaitFor(waiter.state, Waiter::kParked, kParkNs);
  }
  waiters.Remove(waiter);
}

void WaiterTable::Add(Waiter& waiter) {
  Bucket& bucket = BucketOf(waiter.done);
  bucket.waiting.fetch_add(1);
  count_.fetch_add(1);
  std::lock_guard lock(bucket.mutex);
  waiter.next = bucket.first;
  waiter.link = &bucket.first;
  if (waiter.next != nullptr) waiter.next->link = &waiter.next;
  bucket.first = &waiter;
}

void WaiterTable::Remove(Waiter& waiter) {
  Bucket& bucket = BucketOf(waiter.done);
  {
    std::lock_guard lock(bucket.mutex);
    *waiter.link = waiter.next;
    if (waiter.next != nullptr) waiter.next->link = waiter.link;
  }
  bucket.waiting.fetch_sub(1);
  count_.fetch_sub(1);
}

void WaiterTable::Notify(const std::atomic<uint32_t>& done) {
  Bucket& bucket = BucketOf(&done);
  if (bucket.waiting.load() == 0) return;
  std::lock_guard lock(bucket.mutex);
  for (Waiter* waiter = bucket.first; waiter != nullptr; waiter = waiter->next) {
    if (waiter->done == &done) WakeLocked(*waiter);
  }
}

void WaiterTable::WakePolling() {
  for (Bucket& bucket : buckets_) {
    if (bucket.waiting.load() == 0) continue;
    std::lock_guard lock(bucket.mutex);
    for (Waiter* waiter = bucket.first; waiter != nullptr; waiter = waiter->next) {
      if (waiter->state.load() == Waiter::kPolling) WakeLocked(*waiter);
    }
  }
}

void WaiterTable::WakeLocked(Waiter& waiter) {
  const uint32_t state = waiter.state.exchange(Waiter::kNotified);
  if (state == Waiter::kParked) {
    FutexWakeOne(waiter.state);
  } else if (state == Waiter::kPolling) {
    const uint64_t one = 1;
    (void)!::write(waiter.event_fd, &one, sizeof(one));
  }
}

}  // namespace verbena::reactor
