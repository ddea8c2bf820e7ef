#include "rpc/client/channel_core.h"

#include <algorithm>
#include <utility>

#include "absl/container/node_hash_set.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/base/limits.h"
#include "rpc/client/unary_operation.h"
#include "rpc/reactor/reactors.h"
#include "rpc/session/engines.h"

namespace verbena::internal {
namespace {

constexpr double kBackoffFactor = 1.6;
constexpr double kBackoffJitter = 0.2;
// How long tensors of replies stay readable after the channel was dropped.
constexpr absl::Duration kOrphanedPayloads = absl::Seconds(30);

// Reports may outlive the channel, so the names of targets are kept for good: there are few.
absl::string_view Intern(absl::string_view target) {
  static absl::Mutex* const mutex = new absl::Mutex;
  static auto* const targets = new absl::node_hash_set<std::string>;
  absl::MutexLock lock(mutex);
  return *targets->emplace(target).first;
}

absl::Status CheckPositive(absl::string_view setting, absl::Duration value) {
  if (value > absl::ZeroDuration()) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(
      "ChannelOptions: ", setting, " of ", absl::FormatDuration(value), "; more than 0 is needed"));
}

// A channel is made of anything; what is wrong with it ends its calls.
absl::StatusOr<std::string> CheckedTarget(absl::string_view target, const ChannelOptions& options) {
  absl::Status status = CheckPositive("a connect timeout", options.connect_timeout());
  if (status.ok()) status = CheckPositive("a first back-off", options.backoff_first());
  if (status.ok()) status = CheckPositive("a longest back-off", options.backoff_longest());
  if (!status.ok()) return status;
  if (options.reply_bytes_max() > limits::kMessageBytesHighest) {
    return absl::InvalidArgumentError(absl::StrCat("ChannelOptions: replies of ",
                                                   options.reply_bytes_max(), " bytes; at most ",
                                                   limits::kMessageBytesHighest, " are possible"));
  }
  return ParseTarget(target);
}

}  // namespace

absl::StatusOr<std::string> ParseTarget(absl::string_view target) {
  absl::string_view rest = target;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    absl::ConsumePrefix(&rest, "//");
    if (!absl::StartsWith(rest, "/")) {
      return absl::InvalidArgumentError(
          absl::StrCat("target \"", target, "\": unix: needs an absolute path"));
    }
    return absl::StrCat("unix:", rest);
  }
  if (absl::ConsumePrefix(&rest, "dns:")) absl::ConsumePrefix(&rest, "///");
  const size_t colon = rest.rfind(':');
  int port = 0;
  if (colon == absl::string_view::npos || colon == 0 ||
      !absl::SimpleAtoi(rest.substr(colon + 1), &port) || port < 1 || port > 65535) {
    return absl::InvalidArgumentError(
        absl::StrCat("target \"", target,
                     "\" is not host:port (port 1 to 65535), dns:///host:port or unix:/path"));
  }
  return std::string(rest);
}

ChannelCore* ChannelCore::New(absl::string_view target, const ChannelOptions& options) {
  return new ChannelCore(target, options);
}

ChannelCore::ChannelCore(absl::string_view target, const ChannelOptions& options)
    : target_(target),
      interned_target_(Intern(target)),
      options_(options),
      times_calls_(options.default_timeout() != absl::InfiniteDuration()),
      address_(CheckedTarget(target, options)),
      reactor_(&reactor::NextReactor()),
      engine_(Forked() ? nullptr : &session::EngineOf(*reactor_)),
      backoff_(options.backoff_first()),
      backoff_timer_(this,
                     [](reactor::Timer* timer) {
                       ChannelCore* core = static_cast<CoreTimer*>(timer)->core;
                       core->state_ = State::kIdle;
                       // Reconnect only for those who wait; others start it with their next call.
                       if (!core->waiting_.empty() || !core->ready_waiters_.empty()) {
                         core->EnsureConnecting();
                       }
                     }),
      wait_timer_(
          this, [](reactor::Timer* timer) { static_cast<CoreTimer*>(timer)->core->EndOverdue(); }),
      orphan_work_(this) {}

void ChannelCore::Start(UnaryOperation& operation) {
  if (reactor_->InSeat()) {
    StartInSeat(operation);
  } else {
    reactor_->PostSend(operation.start_work());
  }
}

// By the queue that starts went: it comes after all of them.
void ChannelCore::Orphan() { reactor_->PostSeat(orphan_work_); }

void ChannelCore::StartInSeat(UnaryOperation& operation) {
  ++calls_;
  if (!operation.early_cancel().ok()) {
    operation.Fail(operation.early_cancel());
    return;
  }
  if (link_ != nullptr) {
    operation.GiveTo(*link_, transport_);
    return;
  }
  if (!address_.ok()) {
    operation.Fail(address_.status());
    return;
  }
  if (state_ == State::kBackoff && !operation.wait_for_ready()) {
    operation.Fail(last_error_);
    return;
  }
  waiting_.Add(operation);
  if (operation.deadline_ns != 0) ArmWaitTimer(operation.deadline_ns);
  EnsureConnecting();
}

void ChannelCore::EnsureConnecting() {
  if (state_ == State::kIdle && !closing_) Connect();
}

void ChannelCore::Connect() {
  state_ = State::kConnecting;
  session::ConnectOptions connect;
  connect.address = *address_;
  connect.transports = options_.transports();
  connect.timeout = options_.connect_timeout();
  session::Connect(*engine_, connect, *this,
                   [this](absl::StatusOr<session::Link*> link) { OnConnected(std::move(link)); });
}

// A proved link was announced by OnLinkUp before.
void ChannelCore::OnConnected(absl::StatusOr<session::Link*> link) {
  if (!link.ok()) EnterBackoff(link.status());
  MaybeEnd();
}

void ChannelCore::OnLinkUp(session::Link& link) {
  link_ = &link;
  link.user = this;
  state_ = State::kReady;
  last_error_ = absl::OkStatus();
  backoff_ = options_.backoff_first();
  fabric::Fabric* fabric = engine_->FindFabric(link.info().transport);
  transport_ = fabric != nullptr ? fabric->traits().name : absl::string_view();
  staged_bytes_max_.store(link.info().staged_bytes_max, std::memory_order_relaxed);
  TellReadyWaiters(absl::OkStatus());
  StartWaiting();
}

void ChannelCore::OnLinkDown(session::Link*, const absl::Status&) {
  --old_links_;
  MaybeEnd();
}

// Copies from it may stand in streams for as long as those like: nobody waits for OnLinkDown.
void ChannelCore::OnLinkClosing(session::Link& link, const absl::Status& cause) {
  if (&link != link_) return;
  link_ = nullptr;
  ++old_links_;
  // Whatever the cause, what it means for the next calls is this.
  EnterBackoff(absl::UnavailableError(
      absl::StrCat("the link to ", target_, " went down: ", cause.message())));
}

void ChannelCore::OnGoAway(session::Link& link) {
  if (&link != link_) return;
  link_ = nullptr;
  ++old_links_;
  state_ = State::kIdle;  // the next call connects anew, perhaps to the server's successor
}

void ChannelCore::EnterBackoff(const absl::Status& why) {
  last_error_ = why;
  state_ = State::kBackoff;
  const double jitter = absl::Uniform(random_, 1 - kBackoffJitter, 1 + kBackoffJitter);
  reactor_->Arm(backoff_timer_,
                AfterNs(reactor_->now_ns(), absl::ToInt64Nanoseconds(backoff_ * jitter)));
  backoff_ = std::min(backoff_ * kBackoffFactor, options_.backoff_longest());
  TellReadyWaiters(why);
  FailWaiting(why, /*also_patient=*/why.code() == absl::StatusCode::kFailedPrecondition);
}

void ChannelCore::StartWaiting() {
  reactor_->Cancel(wait_timer_);
  wait_due_ns_ = INT64_MAX;
  while (UnaryOperation* const operation = waiting_.first()) {
    waiting_.Remove(*operation);
    operation->GiveTo(*link_, transport_);
  }
}

void ChannelCore::FailWaiting(const absl::Status& why, bool also_patient) {
  for (UnaryOperation *operation = waiting_.first(), *next; operation != nullptr;
       operation = next) {
    next = operation->next_waiting;
    if (operation->wait_for_ready() && !also_patient) continue;
    waiting_.Remove(*operation);
    operation->Fail(why);
  }
}

void ChannelCore::Forget(UnaryOperation& operation) { waiting_.Remove(operation); }

void ChannelCore::ArmWaitTimer(int64_t due_ns) {
  if (due_ns >= wait_due_ns_) return;
  wait_due_ns_ = due_ns;
  reactor_->Arm(wait_timer_, due_ns);
}

void ChannelCore::EndOverdue() {
  wait_due_ns_ = INT64_MAX;
  const int64_t now = reactor_->now_ns();
  int64_t next_due_ns = INT64_MAX;
  for (UnaryOperation *operation = waiting_.first(), *next; operation != nullptr;
       operation = next) {
    next = operation->next_waiting;
    if (operation->deadline_ns == 0) continue;
    if (operation->deadline_ns > now) {
      next_due_ns = std::min(next_due_ns, operation->deadline_ns);
      continue;
    }
    waiting_.Remove(*operation);
    operation->Fail(absl::DeadlineExceededError(
        absl::StrCat("the deadline passed while connecting to ", target_,
                     last_error_.ok() ? "" : "; last error: ", last_error_.message())));
  }
  ArmWaitTimer(next_due_ns);
}

void ChannelCore::OnCallEnded() {
  --calls_;
  MaybeEnd();
}

void ChannelCore::AddReadyWaiter(ReadyWaiter* waiter) {
  if (link_ != nullptr || !address_.ok()) {
    waiter->status = address_.status();
    waiter->done.store(1);
    return;
  }
  ready_waiters_.push_back(waiter);
  EnsureConnecting();
}

void ChannelCore::RemoveReadyWaiter(ReadyWaiter* waiter) {
  ready_waiters_.erase(std::remove(ready_waiters_.begin(), ready_waiters_.end(), waiter),
                       ready_waiters_.end());
}

void ChannelCore::TellReadyWaiters(const absl::Status& status) {
  for (ReadyWaiter* waiter : std::exchange(ready_waiters_, {})) {
    waiter->status = status;
    waiter->done.store(1);
    reactor_->Wake(waiter->done);
  }
}

namespace {

ConnectionCounters CountersFrom(const session::LinkTally& tally) {
  ConnectionCounters counters;
  counters.messages_sent = tally.messages_sent;
  counters.messages_received = tally.messages_received;
  counters.frames_sent = tally.frames_sent;
  counters.frames_received = tally.frames_received;
  counters.credit_stalls = tally.credit_stalls;
  counters.reads = tally.reads;
  counters.read_bytes = tally.read_bytes;
  counters.doorbells = tally.fabric.doorbells;
  counters.send_ticks = tally.fabric.send_ticks;
  counters.work_reads = tally.fabric.reads;
  counters.read_doorbells = tally.fabric.read_doorbells;
  counters.send_waits = tally.fabric.send_waits;
  counters.lanes_broken = tally.fabric.lanes_broken;
  counters.window_leases = tally.fabric.window_leases;
  counters.registered_leases = tally.fabric.registered_leases;
  counters.lane_leases = tally.fabric.lane_leases;
  return counters;
}

}  // namespace

ChannelStatus ChannelCore::StatusInSeat() const {
  ChannelStatus status;
  status.state = state_;
  status.why = std::string(last_error_.message());
  if (link_ == nullptr) return status;
  const session::LinkInfo& info = link_->info();
  status.transport = info.transport;
  status.why = info.why;
  status.peer = info.peer;
  status.bounds_enforced = info.bounds_enforced;
  status.read_ways = info.read_ways;
  status.counters = CountersFrom(link_->tally());
  switch (info.revocation) {
    case fabric::Revocation::kWindow:
      status.revocation = "window";
      break;
    case fabric::Revocation::kLeaseMr:
      status.revocation = "lease-mr";
      break;
    case fabric::Revocation::kLane:
      status.revocation = "lane";
      break;
    case fabric::Revocation::kWord:
      status.revocation = "word";
      break;
    case fabric::Revocation::kTable:
      status.revocation = "table";
      break;
  }
  return status;
}

void ChannelCore::MaybeEnd() {
  if (!orphaned_ || end_queued_) return;
  end_queued_ = true;
  reactor_->PostSeat(orphan_work_);
}

void ChannelCore::EndIfOver() {
  if (calls_ != 0 || state_ == State::kConnecting) return;
  if (link_ != nullptr && !closing_) {
    closing_ = true;
    link_->Drain(reactor_->now_ns() + absl::ToInt64Nanoseconds(kOrphanedPayloads));
  }
  if (link_ != nullptr || old_links_ != 0 || end_queued_) return;  // OnLinkDown comes back here
  reactor_->Cancel(backoff_timer_);
  reactor_->Cancel(wait_timer_);
  delete this;
}

}  // namespace verbena::internal
