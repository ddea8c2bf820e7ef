#include "verbena/channel.h"

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/client/channel_core.h"
#include "rpc/client/unary_operation.h"

namespace verbena {

std::shared_ptr<Channel> Channel::Create(absl::string_view target, const ChannelOptions& options) {
  return std::shared_ptr<Channel>(new Channel(internal::ChannelCore::New(target, options)));
}

Channel::~Channel() { core_->Orphan(); }

const std::string& Channel::target() const { return core_->target(); }

namespace {

// Runs `f` in the seat of the channel's reactor and waits for it.
template <class F>
void RunInSeat(reactor::Reactor& reactor, F f) {
  if (reactor.InSeat()) {
    f();
    return;
  }
  // On the reactor's own thread only a caller that drives for a moment can be in the way.
  bool seated = reactor.TryEnter();
  while (!seated && reactor::Reactor::Current() == &reactor) seated = reactor.TryEnter();
  if (seated) {
    f();
    reactor.Leave();
    return;
  }
  struct Work : reactor::Work {
    Work(reactor::Reactor* r, F* g)
        : reactor::Work([](reactor::Work* work) {
            auto* self = static_cast<Work*>(work);
            reactor::Reactor* const seat = self->home;
            (*self->function)();
            self->done.store(1);
            seat->Wake(self->done);
          }),
          home(r),
          function(g) {}
    reactor::Reactor* home;
    F* function;
    std::atomic<uint32_t> done{0};
  } work(&reactor, &f);
  reactor.PostSeat(work);
  reactor.DriveUntil(work.done);
}

}  // namespace

ChannelStatus Channel::status() const {
  ChannelStatus status;
  reactor::Reactor* const here = reactor::Reactor::Current();
  if (here != nullptr && here != &core_->reactor()) {
    status.why = "unknown here: status() was called on another reactor's thread";
    return status;
  }
  if (Forked()) {
    status.why = std::string(ForkedError().message());
    return status;
  }
  RunInSeat(core_->reactor(), [&] { status = core_->StatusInSeat(); });
  return status;
}

absl::Status Channel::WaitUntilReady(absl::Duration timeout) {
  if (reactor::Reactor::Current() != nullptr) {
    return absl::FailedPreconditionError(
        "WaitUntilReady on a reactor thread would block every call on it");
  }
  if (Forked()) return ForkedError();
  struct Waiter : internal::ChannelCore::ReadyWaiter {
    struct WaitTimer : reactor::Timer {
      explicit WaitTimer(Waiter* w)
          : Timer([](reactor::Timer* fired) {
              Waiter* late = static_cast<WaitTimer*>(fired)->waiter;
              late->core->RemoveReadyWaiter(late);
              late->status = absl::DeadlineExceededError(absl::StrCat(
                  "no connection to ", late->core->target(), " within the time given"));
              late->done.store(1);
              late->core->reactor().Wake(late->done);
            }),
            waiter(w) {}
      Waiter* waiter;
    } timer{this};
    internal::ChannelCore* core = nullptr;
  } waiter;
  waiter.core = core_;
  reactor::Reactor& reactor = core_->reactor();
  RunInSeat(reactor, [&] {
    core_->AddReadyWaiter(&waiter);
    if (waiter.done.load(std::memory_order_relaxed) == 0 && timeout != absl::InfiniteDuration()) {
      reactor.Arm(waiter.timer,
                  AfterNs(reactor::Reactor::NowNs(), absl::ToInt64Nanoseconds(timeout)));
    }
  });
  reactor.DriveUntil(waiter.done);
  RunInSeat(reactor, [&] { reactor.Cancel(waiter.timer); });
  return waiter.status;
}

namespace internal {
namespace {

// Paths are numbered once per process; the numbers of the methods that this thread calls are kept
// at hand.
uint32_t IdOf(const MethodInfo& method) {
  struct Entry {
    const MethodInfo* method = nullptr;
    uint32_t id = 0;
  };
  static thread_local Entry cache[64];
  Entry& entry = cache[(reinterpret_cast<uintptr_t>(&method) / sizeof(MethodInfo)) % 64];
  if (entry.method != &method) entry = {&method, session::MethodId(method.path)};
  return entry.id;
}

int64_t DeadlineNs(const CallOptions& options, const ChannelOptions& channel) {
  absl::Duration left = options.timeout();
  if (options.deadline() != absl::InfiniteFuture()) {
    left = std::min(left, options.deadline() - absl::Now());
  } else if (left == absl::InfiniteDuration()) {
    left = channel.default_timeout();
  }
  if (left == absl::InfiniteDuration()) return 0;
  return AfterNs(reactor::Reactor::NowNs(), std::max<int64_t>(absl::ToInt64Nanoseconds(left), 1));
}

}  // namespace

Operation* StartUnary(Channel& channel, const MethodInfo& method, const void* request,
                      const CallOptions& options) {
  if (Forked()) [[unlikely]]
    return EndedOperation(ForkedError());
  ChannelCore& core = channel.core();
  UnaryOperation* operation = UnaryOperation::New(core);
  operation->method = IdOf(method);
  operation->deadline_ns =
      options.timed() || core.times_calls() ? DeadlineNs(options, core.options()) : 0;
  operation->reply_bytes_max =
      method.reply_bytes_max != 0 ? method.reply_bytes_max : core.options().reply_bytes_max();
  operation->writer().Prepare(core.staged_bytes_max(), method.request_bytes_max);
  absl::Status status = method.request->encode(request, operation->writer());
  if (status.ok()) status = operation->SetOptions(options);
  if (!status.ok()) {
    operation->Discard();
    return EndedOperation(std::move(status));
  }
  core.Start(*operation);
  return operation;
}

}  // namespace internal
}  // namespace verbena
