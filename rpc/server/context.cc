#include "verbena/context.h"

#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/reactor/reactor.h"
#include "rpc/server/context_access.h"

namespace verbena {
namespace internal {

// One suspended Sleep or Cancelled. In the list of its context and, unless it waits for ever, with
// a timer armed.
class SleepState {
 public:
  SleepState(SleepState*& head, std::coroutine_handle<> waiter)
      : reactor_(reactor::Reactor::Current()), waiter_(waiter), timer_(this), wake_(this) {
    VERBENA_CHECK(reactor_ != nullptr, "co_await context.Sleep() outside a reactor");
    next_ = head;
    if (next_ != nullptr) next_->previous_ = &next_;
    previous_ = &head;
    head = this;
  }
  ~SleepState() {
    if (timer_.heap_index != ~0u) reactor_->Cancel(timer_);
    Unlink();
  }

  void Start(absl::Duration time) {
    if (time == absl::InfiniteDuration()) return;
    reactor_->Arm(timer_, reactor_->now_ns() +
                              absl::ToInt64Nanoseconds(std::max(time, absl::ZeroDuration())));
  }
  SleepState* next() const { return next_; }
  // On the reactor's own thread, soon.
  void Wake() {
    if (std::exchange(woken_, true)) return;
    reactor_->RunSoon(wake_);
  }
  // The coroutine is gone, its context may be next; true: destroy now, else the queued work does.
  bool Forget() {
    waiter_ = {};
    Unlink();
    return !woken_;
  }

 private:
  void Unlink() {
    if (previous_ == nullptr) return;
    *previous_ = next_;
    if (next_ != nullptr) next_->previous_ = previous_;
    previous_ = nullptr;
  }
  struct WakeTimer : reactor::Timer {
    explicit WakeTimer(SleepState* s)
        : Timer([](reactor::Timer* timer) { static_cast<WakeTimer*>(timer)->state->Wake(); }),
          state(s) {}
    SleepState* state;
  };
  struct WakeWork : reactor::Work {
    explicit WakeWork(SleepState* s)
        : Work([](reactor::Work* work) {
            SleepState* self = static_cast<WakeWork*>(work)->state;
            self->woken_ = false;
            if (std::coroutine_handle<> waiter = std::exchange(self->waiter_, {})) {
              waiter.resume();  // destroys the state with its awaiter
            } else {
              delete self;
            }
          }),
          state(s) {}
    SleepState* state;
  };

  reactor::Reactor* const reactor_;
  SleepState* next_ = nullptr;
  SleepState** previous_ = nullptr;
  std::coroutine_handle<> waiter_;
  bool woken_ = false;
  WakeTimer timer_;
  WakeWork wake_;
};

void SleepAwaiter::await_suspend(std::coroutine_handle<> waiter) {
  state_ = new SleepState(sleepers_, waiter);
  state_->Start(time_);
}

SleepAwaiter::~SleepAwaiter() {
  if (state_ != nullptr && state_->Forget()) delete state_;
}

void ServerContextAccess::Cancel(ServerContext& context) {
  context.cancelled_.store(true, std::memory_order_release);
  {
    absl::MutexLock lock(&context.mutex_);
    // Under the lock, so that a stop source made at this moment sees the flag. Callbacks are the
    // user's: they may take time, but not call cancellation() of the same context again.
    if (context.stop_ != nullptr) context.stop_->request_stop();
  }
  for (SleepState* s = context.sleepers_; s != nullptr; s = s->next()) s->Wake();
}

}  // namespace internal

ServerContext::~ServerContext() = default;

std::stop_token ServerContext::cancellation() const {
  absl::MutexLock lock(&mutex_);
  if (stop_ == nullptr) {
    stop_ = std::make_unique<std::stop_source>();
    if (IsCancelled()) stop_->request_stop();
  }
  return stop_->get_token();
}

}  // namespace verbena
