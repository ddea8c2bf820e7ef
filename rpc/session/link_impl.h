#pragma once
// One link: what Link promises, put together from its parts. See session.h; everything is in the
// reactor's seat.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/client_calls.h"
#include "rpc/session/death_watch.h"
#include "rpc/session/engine.h"
#include "rpc/session/frame_writer.h"
#include "rpc/session/lanes.h"
#include "rpc/session/lease_names.h"
#include "rpc/session/leases.h"
#include "rpc/session/proof.h"
#include "rpc/session/record_queue.h"
#include "rpc/session/server_calls.h"
#include "rpc/session/transfers.h"

namespace verbena::session {

class LinkImpl final : public Link {
 public:
  using Proved = absl::AnyInvocable<void(absl::StatusOr<Link*>) &&>;
  LinkImpl(EngineImpl& engine, uint64_t serial, const LinkSetup& setup, LinkOwner* owner,
           RequestSink* sink, Proved proved);
  ~LinkImpl();
  static LinkImpl& Of(Link& link) { return static_cast<LinkImpl&>(link); }

  void Begin();

  // ---- what parts ask
  EngineImpl& engine_impl() const { return engine_impl_; }
  fabric::Fabric& fabric() const { return fabric_; }
  LinkId id() const { return id_; }
  uint64_t serial() const { return serial_; }
  fabric::Side side() const { return side_; }
  RequestSink* sink() const { return sink_; }
  FrameWriter& writer() { return writer_; }
  Lanes& lanes() { return lanes_; }
  Transfers& transfers() { return transfers_; }
  ClientCalls& client() { return client_; }
  ServerCalls& server() { return server_; }
  // The fabric still carries it.
  bool up() const { return state_ == State::kProving || state_ == State::kUp; }
  bool accepts_calls() const { return state_ == State::kUp && !peer_drains_ && !draining_; }
  absl::Status DownStatus() const;
  uint32_t inline_max() const { return inline_max_; }
  int64_t reply_lease_age_max_ns() const { return reply_lease_age_max_ns_; }
  int64_t AfterUs(uint64_t us) const;
  // The link's timer runs at `due_ns` or before.
  void DueAt(int64_t due_ns);
  void SendControl(absl::Span<const std::byte> record);
  void SendLeaseRecord(wire::RecordType type, uint64_t lease, bool whole_message);
  void SendCancel(uint32_t word);
  // The link's number of a method; the METHOD record goes first if it is new. 0: no credits for
  // that now.
  uint32_t DefineMethod(uint32_t method);
  // Before a call of it waits: it will have a number once there are credits. False: the link has
  // named kMethodsPerLinkMax.
  bool PromiseMethod(uint32_t method);
  bool KnowsMethod(uint32_t number) const { return number - 1 < methods_.size(); }
  void* method_cookie(uint32_t number) const { return methods_[number - 1].cookie; }
  uint64_t request_bytes_max(uint32_t number) const {
    return methods_[number - 1].request_bytes_max;
  }
  absl::string_view method_path(uint32_t number) const { return methods_[number - 1].path; }
  absl::Status DecodeInline(wire::MessageKind kind, absl::Span<const std::byte> record,
                            wire::MessageView& view);
  void Forget(Arrival& arrival);

  // ---- events
  void OnFrame(absl::Span<const std::byte> frame);
  void OnSendable();
  void OnLinkEnding(const absl::Status& cause);
  void OnLinkDown(const absl::Status& cause);
  void OnProved();
  // Leases ended: their bytes may be announced again.
  void OnBudget();
  void OnTimer();
  void StartDrain(int64_t deadline_ns);
  // Ends everything; the rest happens in the engine's poll.
  void BeginClose(const absl::Status& why);
  void RunClose();
  // The peer broke the protocol.
  void Violate(const absl::Status& why);
  // Whether the drain is over; then the link closes.
  bool CheckDrained();
  // After the fabric's LinkDown: whether nothing refers to the link any more. Then Finish tells its
  // owner.
  bool finished();
  void Finish();
  bool was_proved() const { return proved_up_; }
  // Somebody may wait for what comes next.
  bool awaits() const {
    return state_ != State::kUp || side_ == fabric::Side::kServer || client_.live() != 0 ||
           !arrivals.empty();
  }

  uint64_t announced_bytes = 0;  // leased to the peer
  uint64_t arriving_bytes = 0;   // allocated for bodies and heads that are READ
  List<LeaseGroup> groups;
  List<PayloadSetImpl> sets;
  std::vector<Arrival*> arrivals;
  LeaseNames names;  // of what those two hold
  uint32_t setup_jobs = 0;
  // What parts count; the rest of what tally() says is asked for then.
  LinkTally counted;
  LinkTally TallyNow() const;

 private:
  enum class State : uint8_t { kProving, kUp, kClosing, kDown };
  struct Method {
    std::string path;
    void* cookie = nullptr;  // null: the sink does not know it
    uint64_t request_bytes_max = 0;
  };

  void Resume();
  void DrainControl();
  void OnRecord(wire::RecordHeader header, absl::Span<const std::byte> record);
  void OnControl(wire::RecordHeader header, absl::Span<const std::byte> record);
  absl::Status TakeControl(wire::RecordHeader header, absl::Span<const std::byte> record);
  absl::Status OnProofRecord(wire::RecordHeader header, absl::Span<const std::byte> record);
  absl::Status OnMethod(uint32_t number, absl::Span<const std::byte> record);
  void OnRelease(uint64_t lease, bool whole_message);
  void OnRecall(uint64_t lease);
  absl::Status OnLeaseKeys(absl::Span<const std::byte> record);
  LeaseNames::Place FindName(uint64_t lease);
  void OnGoAway();
  // A fabric's own finding that the peer broke the rules is said in the log.
  void SayCause(const absl::Status& cause) const;
  void SendBare(wire::RecordType type);

  struct LinkTimer : reactor::Timer {
    explicit LinkTimer(LinkImpl& l)
        : reactor::Timer(
              [](reactor::Timer* timer) { static_cast<LinkTimer*>(timer)->link.OnTimer(); }),
          link(l) {}
    LinkImpl& link;
  };

  EngineImpl& engine_impl_;
  fabric::Fabric& fabric_;
  const LinkId id_;
  const uint64_t serial_;
  const fabric::Side side_;
  LinkOwner* const owner_;
  RequestSink* const sink_;
  Proved proved_;
  State state_ = State::kProving;
  bool proved_up_ = false;
  bool told_closing_ = false;
  bool peer_drains_ = false;  // GOAWAY came
  bool draining_ = false;     // GOAWAY went
  bool drain_acknowledged_ = false;
  int64_t drain_due_ns_ = 0;
  int64_t due_ns_ = INT64_MAX;
  absl::Status cause_;
  FrameWriter writer_;
  uint32_t inline_max_;
  const int64_t reply_lease_age_max_ns_;
  bool keys_came_ = false;  // in this frame
  RecordQueue control_;
  Lanes lanes_;
  Transfers transfers_;
  ClientCalls client_;
  ServerCalls server_;
  std::unique_ptr<Proof> proof_;
  std::vector<uint16_t> method_numbers_;  // ours: process-wide id -> number; 0 = not defined yet
  uint32_t methods_defined_ = 0;
  std::vector<bool> methods_promised_;  // by id
  uint32_t promised_ = 0;
  std::vector<Method> methods_;  // the peer's, by number - 1
  LinkTimer timer_;
  std::unique_ptr<DeathWatch> death_watch_;
};

}  // namespace verbena::session
