#include "verbena/context.h"

#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/reactor/reactor.h"
#include "rpc/server/context_access.h"

namespace verbena {
namespace internal {

// One suspended Sleep or Cancelled. In the list of its context, which only user code of the
// reactor's thread touches, and unless it waits for ever with a timer, which lives in the seat.
class SleepState {
 public:
  SleepState(SleepState*& head, std::coroutine_handle<> waiter)
      : reactor_(reactor::Reactor::Current()), waiter_(waiter) {
    VERBENA_CHECK(reactor_ != nullptr, "co_await context.Sleep() outside a reactor");
    next_ = head;
    if (next_ != nullptr) next_->previous_ = &next_;
    previous_ = &head;
    head = this;
  }

  void Start(absl::Duration time) {
    if (time == absl::InfiniteDuration()) return;
    time_ns_ = absl::ToInt64Nanoseconds(std::max(time, absl::ZeroDuration()));
    reactor_->PostSeat(arm_);
  }
  SleepState* next() const { return next_; }
  // The coroutine goes on soon. In the seat or user code.
  void Wake() {
    if (!woken_.exchange(true)) reactor_->RunSoon(wake_);
  }
  // The coroutine is gone, and its context may be next. Ends the state when nothing names it any
  // more.
  void Forget() {
    waiter_ = {};
    if (previous_ == nullptr) return;
    *previous_ = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    previous_ = nullptr;
    reactor_->PostSeat(end_);
  }

 private:
  struct SleepWork : reactor::Work {
    SleepWork(SleepState* s, Run r) : Work(r), state(s) {}
    SleepState* state;
  };
  struct WakeTimer : reactor::Timer {
    explicit WakeTimer(SleepState* s)
        : Timer([](reactor::Timer* timer) { static_cast<WakeTimer*>(timer)->state->Wake(); }),
          state(s) {}
    SleepState* state;
  };
  static SleepState* Of(reactor::Work* work) { return static_cast<SleepWork*>(work)->state; }
  // In the seat.
  static void Arm(reactor::Work* work) {
    SleepState* self = Of(work);
    self->reactor_->Arm(self->timer_, AfterNs(self->reactor_->now_ns(), self->time_ns_));
  }
  static void End(reactor::Work* work) {
    SleepState* self = Of(work);
    if (self->timer_.heap_index != ~0u) self->reactor_->Cancel(self->timer_);
    // Once woken, the queued work ends it.
    if (!self->woken_.exchange(true)) delete self;
  }
  // User code.
  static void Resume(reactor::Work* work) {
    SleepState* self = Of(work);
    std::coroutine_handle<> waiter = std::exchange(self->waiter_, {});
    if (waiter) waiter.resume();  // the awaiter's destructor forgets the state
    self->reactor_->PostSeat(self->last_);
  }
  static void Last(reactor::Work* work) {
    SleepState* self = Of(work);
    if (self->timer_.heap_index != ~0u) self->reactor_->Cancel(self->timer_);
    delete self;
  }

  reactor::Reactor* const reactor_;
  SleepState* next_ = nullptr;
  SleepState** previous_ = nullptr;
  std::coroutine_handle<> waiter_;
  int64_t time_ns_ = 0;
  std::atomic<bool> woken_{false};
  WakeTimer timer_{this};
  SleepWork arm_{this, &Arm};
  SleepWork end_{this, &End};
  SleepWork wake_{this, &Resume};
  SleepWork last_{this, &Last};
};

void SleepAwaiter::await_suspend(std::coroutine_handle<> waiter) {
  state_ = new SleepState(sleepers_, waiter);
  state_->Start(time_);
}

SleepAwaiter::~SleepAwaiter() {
  if (state_ != nullptr) state_->Forget();
}

void ServerContextAccess::Cancel(ServerContext& context) {
  context.cancelled_.store(true, std::memory_order_release);
  std::stop_source* stop;
  {
    const std::lock_guard lock(context.mutex_);  // one that is made after this sees the flag
    stop = context.stop_.load();
  }
  if (stop != nullptr) stop->request_stop();  // runs users' callbacks: under no lock of ours
  for (SleepState* s = context.sleepers_; s != nullptr; s = s->next()) s->Wake();
}

}  // namespace internal

ServerContext::~ServerContext() { delete stop_.load(std::memory_order_relaxed); }

std::stop_token ServerContext::cancellation() const {
  const std::lock_guard lock(mutex_);
  std::stop_source* stop = stop_.load(std::memory_order_relaxed);
  if (stop == nullptr) {
    stop = new std::stop_source;
    if (IsCancelled()) stop->request_stop();
    stop_.store(stop);
  }
  return stop->get_token();
}

}  // namespace verbena
