#include "rpc/reactor/operation.h"

#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/fork.h"
#include "rpc/reactor/reactors.h"

namespace verbena::internal {

namespace {

absl::Status TakenTwice() {
  return absl::FailedPreconditionError(
      "this Call's result was already taken, or the Call was moved from, detached or given to "
      "Then()");
}

absl::Status WouldBlockReactor() {
  return absl::FailedPreconditionError(
      "Get() on a reactor thread would block every call on it: use co_await or Then(), or mark the "
      "method blocking");
}

}  // namespace

Operation::Operation() : resume_work_(this), cancel_work_(this) {}

void Operation::Restart(reactor::Reactor& reactor) {
  reactor_ = &reactor;
  references_.store(2, std::memory_order_relaxed);
  done_.store(kRunning, std::memory_order_relaxed);
  if (cancel_asked_.load(std::memory_order_relaxed)) {
    cancel_asked_.store(false, std::memory_order_relaxed);
    cancel_why_ = absl::OkStatus();
  }
  claimed_ = false;
  resume_on_ = nullptr;
  if (!status_.ok()) status_ = absl::OkStatus();
}

void Operation::RestartEnded(reactor::Reactor& reactor, absl::Status status) {
  Restart(reactor);
  status_ = std::move(status);
  references_.store(1, std::memory_order_relaxed);
  done_.store(kDone, std::memory_order_release);
}

absl::Status Operation::Claim(bool blocking) {
  if (claimed_) return TakenTwice();
  claimed_ = true;
  if (Forked() && !done()) [[unlikely]]
    return ForkedError();  // it runs in the parent
  if (blocking && reactor::Reactor::Current() != nullptr) {
    Cancel(absl::StatusCode::kCancelled, "cancelled: Get() was called on a reactor thread");
    return WouldBlockReactor();
  }
  return absl::OkStatus();
}

bool Operation::Suspend(std::coroutine_handle<> waiter) {
  reactor::Reactor* here = reactor::Reactor::Current();
  resume_on_ = here != nullptr ? here : reactor_;
  waiter_ = waiter;
  uint32_t expected = kRunning;
  if (done_.compare_exchange_strong(expected, kAwaited, std::memory_order_acq_rel)) return true;
  waiter_ = {};
  return false;
}

void Operation::SetCallback(absl::AnyInvocable<void(Operation&) &&> callback) {
  reactor::Reactor* here = reactor::Reactor::Current();
  resume_on_ = here != nullptr ? here : reactor_;
  callback_ = std::move(callback);
  uint32_t expected = kRunning;
  if (done_.compare_exchange_strong(expected, kAwaited, std::memory_order_acq_rel)) {
    return reactor_->Attend();
  }
  Ref();  // Resume gives it up
  resume_on_->Post(resume_work_);
}

void Operation::Cancel(absl::StatusCode code, absl::string_view why) {
  if (done() || cancel_asked_.exchange(true, std::memory_order_acq_rel)) return;
  cancel_why_ = absl::Status(code, why);
  Ref();                             // RunCancel gives it up
  reactor_->PostSeat(cancel_work_);  // after the work that started it, which went the same way
}

void Operation::RunCancel(reactor::Work* work) {
  Operation* self = static_cast<CancelWork*>(work)->operation;
  if (!self->done()) self->OnCancel(self->cancel_why_);
  self->Unref();
}

void Operation::Drop() {
  waiter_ = {};
  if (!done()) Cancel(absl::StatusCode::kCancelled, "the Call was dropped");
  Unref();
}

void Operation::Complete(absl::Status status) {
  if (!status.ok()) status_ = std::move(status);
  Complete();
}

void Operation::Complete() {
  VERBENA_DCHECK(!done());
  const uint32_t before = done_.exchange(kDone);  // see Wake
  if (before != kAwaited) {
    reactor_->Wake(done_);
    Unref();
  } else if (resume_on_ == reactor_) {
    reactor_->RunSoon(resume_work_);
  } else {
    resume_on_->Post(resume_work_);
  }
}

void Operation::Resume(reactor::Work* work) {
  Operation* self = static_cast<ResumeWork*>(work)->operation;
  if (std::coroutine_handle<> waiter = std::exchange(self->waiter_, {})) waiter.resume();
  if (self->callback_) {
    auto callback = std::exchange(self->callback_, nullptr);
    std::move(callback)(*self);
  }
  self->Unref();
}

absl::Status Operation::TakeTensor(Tensor&) {
  return absl::InternalError("this operation yields no tensor");
}
absl::Status Operation::TakeBuffer(Buffer&) {
  return absl::InternalError("this operation yields no buffer");
}

namespace {

class Ended final : public Operation {
 public:
  explicit Ended(absl::Status status) {
    RestartEnded(reactor::DefaultReactor(), std::move(status));
  }

 private:
  void OnCancel(const absl::Status&) override {}
  void Recycle() override { delete this; }
};

}  // namespace

Operation* EndedOperation(absl::Status status) { return new Ended(std::move(status)); }

// ---- what call.h declares

absl::Status Claim(Operation* operation, bool blocking) {
  return operation == nullptr ? TakenTwice() : operation->Claim(blocking);
}
void Wait(Operation& operation) { operation.Wait(); }
bool IsDone(const Operation& operation) {
  if (operation.done()) return true;
  operation.reactor().Attend();  // who asks does not drive
  return false;
}
bool Suspend(Operation& operation, std::coroutine_handle<> waiter) {
  return operation.Suspend(waiter);
}
void ForgetWaiter(Operation& operation) { operation.ForgetWaiter(); }
void SetCallback(Operation& operation, absl::AnyInvocable<void(Operation&) &&> callback) {
  operation.SetCallback(std::move(callback));
}
void CancelOperation(Operation& operation) {
  operation.Cancel(absl::StatusCode::kCancelled, "cancelled by the caller");
}
void DropOperation(Operation* operation) { operation->Drop(); }
void DetachOperation(Operation* operation) {
  if (!operation->done()) operation->reactor().Attend();
  operation->Unref();
}
const CallReport& ReportOf(const Operation* operation) {
  static const CallReport* const none = new CallReport;
  return operation != nullptr && operation->done() ? operation->report() : *none;
}
const absl::Status& StatusOf(const Operation& operation) { return operation.status(); }
absl::Status TakeTensor(Operation& operation, Tensor& tensor) {
  return operation.TakeTensor(tensor);
}
absl::Status TakeBuffer(Operation& operation, Buffer& buffer) {
  return operation.TakeBuffer(buffer);
}
void TakeNothing(Operation& operation) { operation.ReleaseKept(); }

namespace {
struct PostedCallback : reactor::Work {
  explicit PostedCallback(absl::AnyInvocable<void() &&> f)
      : Work([](reactor::Work* work) {
          auto* self = static_cast<PostedCallback*>(work);
          std::move(self->callback)();
          delete self;
        }),
        callback(std::move(f)) {}
  absl::AnyInvocable<void() &&> callback;
};
}  // namespace

void PostCallback(absl::AnyInvocable<void() &&> callback) {
  reactor::Reactor* here = reactor::Reactor::Current();
  (here != nullptr ? *here : reactor::DefaultReactor())
      .Post(*new PostedCallback(std::move(callback)));
}

}  // namespace verbena::internal
