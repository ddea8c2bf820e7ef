#pragma once
// ServerContext: what a handler knows about its call. Valid until the handler's Task ends.
// Default-constructible, so that a handler can be tested without a server.
#include <atomic>
#include <coroutine>
#include <mutex>
#include <stop_token>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "verbena/metadata.h"

namespace verbena {

namespace internal {

struct ServerContextAccess;
class SleepState;  // rpc/server/context.cc

// Waits for a time or for the call's cancellation; false when cancelled.
class SleepAwaiter {
 public:
  SleepAwaiter(std::atomic<bool>& cancelled, SleepState*& sleepers, absl::Duration time)
      : cancelled_(cancelled), sleepers_(sleepers), time_(time) {}
  SleepAwaiter(const SleepAwaiter&) = delete;
  SleepAwaiter& operator=(const SleepAwaiter&) = delete;
  ~SleepAwaiter();
  bool await_ready() const { return cancelled_.load(std::memory_order_acquire); }
  void await_suspend(std::coroutine_handle<> waiter);
  bool await_resume() const { return !cancelled_.load(std::memory_order_acquire); }

 private:
  std::atomic<bool>& cancelled_;
  SleepState*& sleepers_;
  absl::Duration time_;
  SleepState* state_ = nullptr;
};

}  // namespace internal

class ServerContext {
 public:
  ServerContext() = default;
  ServerContext(const ServerContext&) = delete;
  ServerContext& operator=(const ServerContext&) = delete;
  ~ServerContext();

  // The client cancelled, is gone, or the deadline passed. Any thread.
  bool IsCancelled() const { return cancelled_.load(std::memory_order_acquire); }
  // For std::jthread, compute loops, CallOptions. Any thread; allocates at its first use. Its
  // callbacks run on the call's reactor, which they hold up.
  std::stop_token cancellation() const;
  absl::Time deadline() const { return deadline_; }
  const Metadata& metadata() const { return metadata_; }
  // "/package.Service/Method"; empty without a server.
  absl::string_view method() const { return method_; }
  // The client's address and the transport of the call.
  absl::string_view peer() const { return peer_; }
  absl::string_view transport() const { return transport_; }
  // What breaks the rules of metadata.h ends the call with INTERNAL naming it, unless the handler
  // ends it with an error. In the handler only.
  void add_trailing_metadata(absl::string_view key, absl::string_view value) {
    trailing_.Add(key, value);
  }

  // co_await context.Sleep(time): false when the call was cancelled meanwhile. On a reactor.
  internal::SleepAwaiter Sleep(absl::Duration time) {
    return internal::SleepAwaiter(cancelled_, sleepers_, time);
  }
  // co_await context.Cancelled(): returns once the call is cancelled or over.
  internal::SleepAwaiter Cancelled() {
    return internal::SleepAwaiter(cancelled_, sleepers_, absl::InfiniteDuration());
  }

 private:
  friend struct internal::ServerContextAccess;
  std::atomic<bool> cancelled_{false};
  absl::Time deadline_ = absl::InfiniteFuture();
  Metadata metadata_;
  Metadata trailing_;
  absl::string_view method_;
  absl::string_view peer_;
  absl::string_view transport_;
  internal::SleepState* sleepers_ = nullptr;  // in the reactor's seat
  // Not absl::Mutex: one is made and destroyed with each call, and its destructor tells the
  // detector of deadlocks, for 500 instructions.
  mutable std::mutex mutex_;
  mutable std::atomic<std::stop_source*> stop_{nullptr};  // made under the mutex
};

}  // namespace verbena
