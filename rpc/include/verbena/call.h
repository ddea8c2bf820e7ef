#pragma once
// Call<T>: one operation in flight (an RPC, a fetch, a stream's end). It has already started and
// keeps no reference to its arguments. Take its result once, in one of three ways:
//   absl::StatusOr<HelloReply> r = stub.SayHello(request).Get();     // block
//   absl::StatusOr<HelloReply> r = co_await stub.SayHello(request);  // await
//   stub.SayHello(request).Then([](absl::StatusOr<HelloReply> r) { ... });
// Dropping a Call cancels it, without blocking; nothing dangles. Any thread; not concurrently on
// one object.
#include <coroutine>
#include <cstddef>
#include <type_traits>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "absl/utility/utility.h"
#include "verbena/metadata.h"
#include "verbena/options.h"
#include "verbena/path.h"
#include "verbena/task.h"
#include "verbena/tensor.h"

namespace google::protobuf {
class MessageLite;
}

namespace verbena {

template <class T>
using Result = std::conditional_t<std::is_void_v<T>, absl::Status,
                                  absl::StatusOr<std::conditional_t<std::is_void_v<T>, int, T>>>;

// What is known about a finished call.
struct CallReport {
  absl::string_view transport;  // "shm", "verbs", "tcp"; empty: the call never reached a link
  absl::string_view peer;       // the channel's target
  Path path = Path::kNone;      // of a fetch, and of a call whose reply was placed: how bytes came
  Metadata trailing_metadata;
};

namespace internal {

class Operation;  // rpc/reactor/operation.h

// Any thread; one at a time for one Call.
// Why the result cannot be taken now, if so. `blocking` on a reactor thread cancels and is refused.
absl::Status Claim(Operation* operation, bool blocking);
void Wait(Operation& operation);  // blocks; drives the reactor meanwhile
bool IsDone(const Operation& operation);
// False: it is done, go on. True: `waiter` is resumed on the reactor where it was awaited.
bool Suspend(Operation& operation, std::coroutine_handle<> waiter);
void ForgetWaiter(Operation& operation);
// `callback` runs on the reactor, once, never inline.
void SetCallback(Operation& operation, absl::AnyInvocable<void(Operation&) &&> callback);
void PostCallback(absl::AnyInvocable<void() &&> callback);
void CancelOperation(Operation& operation);
void DropOperation(Operation* operation);    // cancels if it runs; gives up this reference
void DetachOperation(Operation* operation);  // lets it run; gives up this reference
const CallReport& ReportOf(const Operation* operation);

// After it is done. Taking parses and gives the operation's memory back.
const absl::Status& StatusOf(const Operation& operation);
absl::Status TakeMessage(Operation& operation, google::protobuf::MessageLite& message);
absl::Status TakeTensor(Operation& operation, Tensor& tensor);
absl::Status TakeBuffer(Operation& operation, Buffer& buffer);
void TakeNothing(Operation& operation);

// How a T is made of a finished operation. Parcel<T> specialises it.
template <class T>
struct Taker {
  static_assert(std::is_base_of_v<google::protobuf::MessageLite, T>,
                "Call<T>: T is a protobuf message, a Parcel, a Tensor or a Buffer");
  static absl::Status Take(Operation& operation, T& out) { return TakeMessage(operation, out); }
};
template <>
struct Taker<Tensor> {
  static absl::Status Take(Operation& operation, Tensor& out) { return TakeTensor(operation, out); }
};
template <>
struct Taker<Buffer> {
  static absl::Status Take(Operation& operation, Buffer& out) { return TakeBuffer(operation, out); }
};

template <class T>
absl::Status TakeInto(Operation& operation, T& out) {
  if (!StatusOf(operation).ok()) {
    absl::Status status = StatusOf(operation);
    TakeNothing(operation);
    return status;
  }
  return Taker<T>::Take(operation, out);
}
template <class T>
Result<T> TakeResult(Operation& operation) {
  if constexpr (std::is_void_v<T>) {
    absl::Status status = StatusOf(operation);
    TakeNothing(operation);
    return status;
  } else {
    absl::StatusOr<T> result{absl::in_place};
    absl::Status status = TakeInto(operation, *result);
    if (!status.ok()) result = std::move(status);
    return result;
  }
}

// What every Call is: one reference to an operation.
class CallBase {
 public:
  CallBase(CallBase&& other) noexcept : operation_(std::exchange(other.operation_, nullptr)) {}
  CallBase& operator=(CallBase&& other) noexcept {
    if (this != &other) {
      Drop();
      operation_ = std::exchange(other.operation_, nullptr);
    }
    return *this;
  }
  ~CallBase() { Drop(); }

  // Best effort, never inline: the call ends with CANCELLED unless it ended before. Any thread may
  // do the same through CallOptions::set_cancellation.
  void Cancel() {
    if (operation_ != nullptr) CancelOperation(*operation_);
  }
  // Lets it run; nobody wants the result.
  void Detach() {
    if (operation_ != nullptr) DetachOperation(std::exchange(operation_, nullptr));
  }
  bool done() const { return operation_ != nullptr && IsDone(*operation_); }
  // Once done; empty before. Valid as long as this Call: keep it in a variable (Then consumes it).
  const CallReport& report() const { return ReportOf(operation_); }

 protected:
  explicit CallBase(Operation* operation) : operation_(operation) {}
  void Drop() {
    if (operation_ != nullptr) DropOperation(std::exchange(operation_, nullptr));
  }
  Operation* operation_;  // one reference
};

// Awaits an operation; a coroutine frame that dies meanwhile is forgotten.
class AwaiterBase {
 public:
  AwaiterBase(Operation* operation, absl::Status claim)
      : operation_(operation), claim_(std::move(claim)) {}
  AwaiterBase(const AwaiterBase&) = delete;
  AwaiterBase& operator=(const AwaiterBase&) = delete;
  ~AwaiterBase() {
    if (suspended_) ForgetWaiter(*operation_);
  }
  bool await_ready() const { return !claim_.ok() || IsDone(*operation_); }
  bool await_suspend(std::coroutine_handle<> waiter) {
    suspended_ = true;  // before Suspend: the coroutine may be resumed elsewhere while it returns
    if (Suspend(*operation_, waiter)) return true;
    suspended_ = false;
    return false;
  }

 protected:
  Operation* operation_;
  absl::Status claim_;
  bool suspended_ = false;
};

}  // namespace internal

template <class T>
class [[nodiscard(
    "dropping a Call cancels it: co_await it, Get() it, give it Then(callback), or Detach() "
    "it")]] Call : public internal::CallBase {
 public:
  using Output = Result<T>;
  explicit Call(internal::Operation * operation) : CallBase(operation) {}

  // Blocks this thread until the call has ended. On a reactor thread: FAILED_PRECONDITION at once,
  // the call is cancelled.
  Output Get() {
    absl::Status claim = internal::Claim(operation_, /*blocking=*/true);
    if (!claim.ok()) return claim;
    internal::Wait(*operation_);
    return internal::TakeResult<T>(*operation_);
  }
  // Like Get(), but parses into `reply`, which keeps its allocations, or its arena.
  template <class U = T>
  requires(!std::is_void_v<U>) absl::Status GetInto(U & reply) {
    absl::Status claim = internal::Claim(operation_, /*blocking=*/true);
    if (!claim.ok()) return claim;
    internal::Wait(*operation_);
    return internal::TakeInto<U>(*operation_, reply);
  }

  class Awaiter : public internal::AwaiterBase {
   public:
    using AwaiterBase::AwaiterBase;
    Output await_resume() {
      suspended_ = false;
      if (!claim_.ok()) return std::move(claim_);
      return internal::TakeResult<T>(*operation_);
    }
  };
  // Yields Result<T>, for a named Call or a temporary. Resumes on the reactor where it was awaited.
  Awaiter operator co_await() {
    absl::Status claim = internal::Claim(operation_, /*blocking=*/false);
    return Awaiter(operation_, std::move(claim));
  }

  template <class U>
  class IntoAwaiter : public internal::AwaiterBase {
   public:
    IntoAwaiter(internal::Operation* operation, absl::Status claim, U* reply)
        : AwaiterBase(operation, std::move(claim)), reply_(reply) {}
    absl::Status await_resume() {
      suspended_ = false;
      if (!claim_.ok()) return std::move(claim_);
      return internal::TakeInto<U>(*operation_, *reply_);
    }

   private:
    U* reply_;
  };
  // Like co_await, but parses into `reply`, which must live until then; yields Status.
  template <class U = T>
  requires(!std::is_void_v<U>) IntoAwaiter<U> Into(U & reply) {
    absl::Status claim = internal::Claim(operation_, /*blocking=*/false);
    return IntoAwaiter<U>(operation_, std::move(claim), &reply);
  }

  // `callback(Result<T>)` runs on the reactor, exactly once, never inline; it may be move-only.
  // Consumes the Call.
  template <class F>
  void Then(F callback) {
    static_assert(
        std::is_invocable_v<F&&, Output>,
        "Then(callback): the callback takes StatusOr<Reply> (Status for a call without a reply)");
    absl::Status claim = internal::Claim(operation_, /*blocking=*/false);
    if (!claim.ok()) {
      internal::PostCallback([f = std::move(callback), s = std::move(claim)]() mutable {
        std::move(f)(Output(std::move(s)));
      });
      return;
    }
    internal::SetCallback(*operation_,
                          [f = std::move(callback)](internal::Operation& operation) mutable {
                            std::move(f)(internal::TakeResult<T>(operation));
                          });
    Detach();
  }
};

}  // namespace verbena
