#pragma once
// internal::Operation: what a Call<T> refers to. It has a reactor, ends exactly once in that
// reactor's seat, and then wakes whoever waits: a thread in Get(), a suspended coroutine, or a
// callback. Reference-counted: the user's Call holds one reference, the work in flight another.
//
// Invariant: done_ goes from kRunning (perhaps through kAwaited) to kDone once; waiter_ and
// callback_ are written before kAwaited is published and read after kDone was.
#include <atomic>
#include <coroutine>
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "rpc/reactor/reactor.h"
#include "rpc/reactor/work.h"
#include "verbena/call.h"

namespace verbena::internal {

class MessageReader;  // rpc/tensor/message_reader.h

class Operation {
 public:
  Operation(const Operation&) = delete;
  Operation& operator=(const Operation&) = delete;

  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    // Who holds the only reference needs no locked instruction to give it up.
    if (references_.load(std::memory_order_acquire) == 1 ||
        references_.fetch_sub(1, std::memory_order_acq_rel) == 1) {
      Recycle();
    }
  }

  reactor::Reactor& reactor() const { return *reactor_; }
  bool done() const { return done_.load(std::memory_order_acquire) == kDone; }
  const absl::Status& status() const { return status_; }
  const CallReport& report() const { return report_; }

  // ---- the user's side, see call.h. Any thread, one at a time.
  absl::Status Claim(bool blocking);
  void Wait() { reactor_->DriveUntil(done_); }
  bool Suspend(std::coroutine_handle<> waiter);
  void ForgetWaiter() { waiter_ = {}; }
  void SetCallback(absl::AnyInvocable<void(Operation&) &&> callback);
  // Any thread, several times: OnCancel(why) runs once in the seat unless the operation ended
  // before.
  void Cancel(absl::StatusCode code, absl::string_view why);
  void Drop();

  // ---- results, once done; each once.
  // What a reply brought; null for operations that yield no message.
  virtual MessageReader* reader() { return nullptr; }
  virtual absl::Status TakeTensor(Tensor& tensor);
  virtual absl::Status TakeBuffer(Buffer& buffer);
  // Gives up what the operation kept for its caller (memory that was lent to the peer).
  virtual void ReleaseKept() {}

 protected:
  enum State : uint32_t { kRunning = 0, kDone = 1, kAwaited = 2 };

  Operation();
  virtual ~Operation() = default;
  // Makes it new: two references, running.
  void Restart(reactor::Reactor& reactor);
  // Makes it new and over: one reference.
  void RestartEnded(reactor::Reactor& reactor, absl::Status status);
  // The operation ends; in the seat. Gives up the reference of the work in flight: to the
  // resumption, where somebody awaits it.
  void Complete(absl::Status status);
  void Complete();  // with OK
  // In the seat, not done yet. Complete follows, now or later.
  virtual void OnCancel(const absl::Status& why) = 0;
  // No reference is left.
  virtual void Recycle() = 0;

  CallReport report_;
  absl::Status status_;

 private:
  struct ResumeWork : reactor::Work {
    explicit ResumeWork(Operation* o) : Work(&Operation::Resume), operation(o) {}
    Operation* operation;
  };
  struct CancelWork : reactor::Work {
    explicit CancelWork(Operation* o) : Work(&Operation::RunCancel), operation(o) {}
    Operation* operation;
  };
  static void Resume(reactor::Work* work);
  static void RunCancel(reactor::Work* work);

  reactor::Reactor* reactor_ = nullptr;
  std::atomic<uint32_t> references_{0};
  std::atomic<uint32_t> done_{kRunning};
  std::atomic<bool> cancel_asked_{false};
  bool claimed_ = false;
  reactor::Reactor* resume_on_ = nullptr;
  std::coroutine_handle<> waiter_;
  absl::AnyInvocable<void(Operation&) &&> callback_;
  absl::Status cancel_why_;
  ResumeWork resume_work_;
  CancelWork cancel_work_;
};

// An operation that was over before it began. The caller owns one reference.
Operation* EndedOperation(absl::Status status);

}  // namespace verbena::internal
