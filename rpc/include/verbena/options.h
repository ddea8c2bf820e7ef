#pragma once
// CallOptions: settings of one call. A class with chained setters that work on a temporary (by
// value, so that nothing dangles) and on a named object; never an aggregate, since g++ 12 destroys
// those twice inside co_await.
//   stub.SayHello(request, verbena::CallOptions().set_timeout(absl::Milliseconds(5)))
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>

#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "verbena/metadata.h"
#include "verbena/placement.h"
#include "verbena/tensor.h"

namespace verbena {

class ServerContext;

class CallOptions {
 public:
  CallOptions() = default;
  CallOptions(const CallOptions& other);
  CallOptions(CallOptions&&) noexcept = default;
  CallOptions& operator=(const CallOptions& other);
  CallOptions& operator=(CallOptions&&) noexcept = default;
  ~CallOptions() = default;

  // Deadline and cancellation of the call being served.
  static CallOptions FromContext(const ServerContext& context);

  // The call ends with DEADLINE_EXCEEDED after this time, counted from the start of the call; the
  // earlier of timeout and deadline holds. The server may still have run it.
  CallOptions& set_timeout(absl::Duration timeout) & {
    timeout_ = timeout;
    timed_ = true;
    return *this;
  }
  CallOptions set_timeout(absl::Duration timeout) && { return std::move(set_timeout(timeout)); }
  CallOptions& set_deadline(absl::Time deadline) & {
    deadline_ = deadline;
    timed_ = true;
    return *this;
  }
  CallOptions set_deadline(absl::Time deadline) && { return std::move(set_deadline(deadline)); }
  // Any thread may request the stop: the call ends with CANCELLED.
  CallOptions& set_cancellation(std::stop_token token) &;
  CallOptions set_cancellation(std::stop_token token) && {
    return std::move(set_cancellation(std::move(token)));
  }
  // The reply's tensors are fetched there before the call completes.
  CallOptions& set_reply_placement(Placement placement) &;
  CallOptions set_reply_placement(Placement placement) && {
    return std::move(set_reply_placement(std::move(placement)));
  }
  // While there is no connection the call waits (until its deadline) instead of failing with
  // UNAVAILABLE.
  CallOptions& set_wait_for_ready(bool wait) & {
    wait_for_ready_ = wait;
    return *this;
  }
  CallOptions set_wait_for_ready(bool wait) && { return std::move(set_wait_for_ready(wait)); }
  CallOptions& add_metadata(absl::string_view key, absl::string_view value) &;
  CallOptions add_metadata(absl::string_view key, absl::string_view value) && {
    return std::move(add_metadata(key, value));
  }

  absl::Duration timeout() const { return timeout_; }
  absl::Time deadline() const { return deadline_; }
  // Whether one of both was set.
  bool timed() const { return timed_; }
  bool wait_for_ready() const { return wait_for_ready_; }
  // The rare ones; null when nothing of them was set.
  struct Rare {
    std::stop_token cancellation;
    Metadata metadata;
    std::optional<Placement> reply_placement;
  };
  const Rare* rare() const { return rare_.get(); }

 private:
  Rare& MutableRare();

  absl::Duration timeout_ = absl::InfiniteDuration();
  absl::Time deadline_ = absl::InfiniteFuture();
  std::unique_ptr<Rare> rare_;
  bool timed_ = false;
  bool wait_for_ready_ = false;
};

}  // namespace verbena
