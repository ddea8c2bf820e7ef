#pragma once
// internal::ChannelCore: a channel's connection, on one reactor: at most one link, the calls that
// wait for it, and the back-off between attempts. Lives until the public Channel is gone and the
// last call and link have ended.
#include <atomic>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/random/random.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/client/waiting_calls.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/bootstrap.h"
#include "rpc/session/session.h"
#include "verbena/channel.h"

namespace verbena::internal {

class UnaryOperation;

class ChannelCore final : public session::LinkOwner {
 public:
  static ChannelCore* New(absl::string_view target, const ChannelOptions& options);

  // ---- any thread
  const std::string& target() const { return target_; }
  absl::string_view interned_target() const { return interned_target_; }
  const ChannelOptions& options() const { return options_; }
  // Whether calls without a deadline of their own have one.
  bool times_calls() const { return times_calls_; }
  reactor::Reactor& reactor() const { return *reactor_; }
  // Of the link there was last, see session::LinkInfo. Before the first nobody knows what the peer
  // will reach, so what is not too large is staged.
  uint64_t staged_bytes_max() const { return staged_bytes_max_.load(std::memory_order_relaxed); }
  // Starts it in the seat if that is free, else by the inbox.
  void Start(UnaryOperation& operation);
  // The public Channel is gone.
  void Orphan();

  // ---- in the seat
  void StartInSeat(UnaryOperation& operation);
  void Forget(UnaryOperation& operation);
  void OnCallEnded();
  void EnsureConnecting();
  ChannelStatus StatusInSeat() const;
  // `done` becomes 1 when the channel is ready or an attempt failed. Called in the seat too.
  struct ReadyWaiter {
    std::atomic<uint32_t> done{0};
    absl::Status status;
  };
  void AddReadyWaiter(ReadyWaiter* waiter);
  void RemoveReadyWaiter(ReadyWaiter* waiter);

  void OnLinkUp(session::Link& link) override;
  void OnLinkClosing(session::Link& link, const absl::Status& cause) override;
  void OnLinkDown(session::Link* link, const absl::Status& cause) override;
  void OnGoAway(session::Link& link) override;

 private:
  using State = ChannelStatus::State;
  ChannelCore(absl::string_view target, const ChannelOptions& options);
  ~ChannelCore() = default;
  void Connect();
  void OnConnected(absl::StatusOr<session::Link*> link);
  void FailWaiting(const absl::Status& why, bool also_patient);
  void StartWaiting();
  void TellReadyWaiters(const absl::Status& status);
  void EnterBackoff(const absl::Status& why);
  void ArmWaitTimer(int64_t due_ns);
  void EndOverdue();
  // Ends the core soon, never inline, if it is an orphan without calls.
  void MaybeEnd();
  void EndIfOver();

  struct OrphanWork : reactor::Work {
    explicit OrphanWork(ChannelCore* c)
        : Work([](reactor::Work* work) {
            ChannelCore* self = static_cast<OrphanWork*>(work)->core;
            self->orphaned_ = true;
            self->end_queued_ = false;
            self->EndIfOver();
          }),
          core(c) {}
    ChannelCore* core;
  };
  struct CoreTimer : reactor::Timer {
    CoreTimer(ChannelCore* c, Run r) : Timer(r), core(c) {}
    ChannelCore* core;
  };

  const std::string target_;
  const absl::string_view interned_target_;
  const ChannelOptions options_;
  const bool times_calls_;
  absl::StatusOr<std::string> address_;
  reactor::Reactor* const reactor_;
  session::Engine* const engine_;
  std::atomic<uint64_t> staged_bytes_max_{4 << 20};

  State state_ = State::kIdle;
  session::Link* link_ = nullptr;
  absl::string_view transport_;
  absl::Status last_error_;
  absl::Duration backoff_;
  bool orphaned_ = false;
  bool end_queued_ = false;
  bool closing_ = false;
  uint32_t old_links_ = 0;  // going away, their calls not over
  uint64_t calls_ = 0;      // started and not ended
  WaitingCalls waiting_;
  int64_t wait_due_ns_ = INT64_MAX;  // of wait_timer_; the earliest deadline of those that wait
  std::vector<ReadyWaiter*> ready_waiters_;
  CoreTimer backoff_timer_;
  CoreTimer wait_timer_;
  OrphanWork orphan_work_;
  absl::BitGen random_;
};

// "host:port", "dns:///host:port", "unix:/path" to an address for Connect. INVALID_ARGUMENT says
// what is wrong.
absl::StatusOr<std::string> ParseTarget(absl::string_view target);

}  // namespace verbena::internal
