#pragma once
// ShmFabric: links between processes of one user on one host. Frames go through rings of 64-byte
// lines in sealed memfds (ring.h), READs are copies that the reader makes from the owner's slabs,
// mapped, or from its process (transfers.h), leases are words in the owner's segment
// (lease_table.h). No method of the reactor's enters the kernel in the steady state.
//
// A link is hot while it has traffic: polled every tick. One without traffic for a few milliseconds
// turns cold: its `sleeping` flag is set, so the peer rings the fabric's eventfd; while the reactor
// is awake anyway, one cold link is looked at per tick in turn. So a thousand idle links cost one
// look per tick, and Arm is as long as the hot list.
#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "rpc/fabric/events.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/inbox.h"
#include "rpc/fabric/shm/link.h"
#include "rpc/fabric/shm/send_buffers.h"
#include "rpc/fabric/shm/transfers.h"

namespace verbena::fabric::shm {

// For how long a link that closes waits for copies that stand in streams of its peer's. Lower, and
// memory is kept in quarantine (quarantine.h) for peers that only are slow; higher, and whoever
// waits for the link's end waits for them.
inline constexpr int64_t kHeldNs = 2'000'000'000;
// The same for a revocation. With the grace that the session gives the reader it is what a call's
// end may take where a queue pair has to go. Lower, and memory is kept although its reader's stream
// runs: 24 copies of 1 GiB take 72 ms by NVLink.
inline constexpr int64_t kRevokeHeldNs = 90'000'000;

struct ShmOptions {
  // Imports slabs of peers. Outlives the fabric.
  memory::Device* host = nullptr;
  // Runs a job on the setup thread; never inline while a lock of the caller's is held. Any thread.
  std::function<void(absl::AnyInvocable<void() &&>)> post_setup;
  int64_t held_ns = kHeldNs;
  int64_t revoke_held_ns = kRevokeHeldNs;
  // What this side exports at once on a link; at most kExportsMax, which its peer takes.
  uint32_t exports_max = kExportsMax;
};

// OK, or why this process cannot have shm (no memfd, no sealing).
absl::Status ShmUsable();

class ShmFabric final : public Fabric, private Transfers::Owner, private StageServer::Owner {
 public:
  explicit ShmFabric(const ShmOptions& options);
  ~ShmFabric() override;

  const Traits& traits() const override { return traits_; }
  absl::StatusOr<Offer> Prepare(LinkId link, Side side, absl::string_view peer_blob) override;
  absl::Status Complete(LinkId link, Offer peer, Sockets& sockets) override;
  void Abandon(LinkId link) override;
  std::string ReadWays(LinkId link) const override;
  absl::StatusOr<Offer> PrepareLane(LinkId link, Lane lane) override;
  absl::Status CompleteLane(LinkId link, Lane lane, Offer peer) override;
  void Start(LinkId link) override;
  bool AcquireFrame(LinkId link, OutFrame& frame) override;
  void Send(LinkId link, absl::Span<const OutFrame> frames) override;
  void SendCopy(LinkId link, const std::byte* frame, uint32_t bytes) override;
  void Discard(LinkId link, const OutFrame& frame) override;
  void Lease(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
             const std::byte* data, size_t bytes) override;
  void Revoke(LeaseSlot slot) override;
  void Read(ReadSlot slot, LinkId link, Lane lane, const RemoteKey& key, uint64_t offset,
            absl::Span<const LocalPiece> pieces) override;
  void BreakLane(LinkId link, Lane lane) override;
  void Close(LinkId link) override;
  bool Poll(EventSink& sink) override;
  bool HasLater() const override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override { return epoll_fd_; }
  bool PeerOnThisCpu() const override;
  uint64_t StagedBytesMax(LinkId link) const override;

  // For tests: links that are polled every tick.
  size_t hot_links() const { return hot_.size(); }

 private:
  struct LeaseRecord {
    enum class State : uint8_t { kNone, kPending, kLive, kVoid };
    State state = State::kNone;
    uint32_t generation = 0;
    uint32_t entry = kNoEntry;
    uint64_t word = 0;  // in the table, while it is live
    LinkId link = LinkId::kNone;
    uint8_t lane_index = 0;
    uint64_t exported = 0;     // the buffer whose export it needs; 0 = none
    memory::RegionRef region;  // of a device: a stream of the peer's may outlast the lease
  };
  // Stages, whose memory's export is waited for like a lease's.
  static constexpr LeaseSlot kStagesSlot{};
  // A revocation that waits for what still reads the memory: copies to stages, the peer's holds.
  struct Ending {
    LeaseSlot slot;
    LinkId link = LinkId::kNone;
    uint64_t link_serial = 0;
    uint32_t entry = kNoEntry;
    uint64_t word = 0;
    memory::RegionRef region;
    int64_t since_ns = 0;
  };
  struct LaneBreak {
    LinkId link;
    Lane lane;
  };

  Link* Find(LinkId link) const {
    const auto index = static_cast<size_t>(link);
    return index < links_.size() ? links_[index].get() : nullptr;
  }

  // Frames (shm_frames.cc)
  // Whether PollLink would do anything.
  static bool HasNews(const Link& link) {
    return link.in.Next() != 0 || link.hung_up ||
           link.theirs.control().closed.load(std::memory_order_acquire) != 0 ||
           StageServer::Asked(link);
  }
  bool PollAll(EventSink& sink);
  bool PollLink(Link& link, EventSink& sink);
  bool PollCold(EventSink& sink);
  void WantBuffer(LinkId link);
  void OfferBuffers();
  bool FrameWaits() const;
  void Ring(const Link& link);
  void Sent(Link& link) {
    link.active = true;
    if (!link.hot) [[unlikely]]
      Heat(link);
    WakePeer(link);
  }
  void WakePeer(Link& link) {
    // Pairs with the fence of a peer that sets `sleeping` and then looks at its ring once more: one
    // of both sees the other.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    if (link.theirs.control().sleeping.load(std::memory_order_relaxed) != 0) [[unlikely]]
      Ring(link);
  }

  // Hot and cold, sleeping (shm_sleep.cc)
  void Heat(Link& link);
  void Housekeep();
  void CoolIdle();
  void NoteCpu();
  void CheckHangups();

  // Leases (shm_leases.cc)
  LeaseRecord& RecordOf(LeaseSlot slot);
  // Of `buffer`, or as the process has it, or by way of stages.
  void LeaseLive(const PendingLease& lease, Link& link, uint64_t buffer);
  bool StillRead(const Ending& ending) const;
  // What streams of the peer's read, of a link that is about to go.
  std::vector<HeldLease> TakeHeld(Link& link);
  // Whether it can be answered: nothing reads the memory, or what does is waited for long enough.
  bool MayAnswer(const Ending& ending, int64_t now_ns) const;
  // Answers the revocations that can be. True: there were some.
  bool AdvanceRevocations();
  // Answered, and still read. Logged once for a link.
  void Keep(Link& link, const Ending& ending);
  // Lets go of what was kept for streams of peers', and is read no more.
  void LookAtKept();
  // It waits until its region has been exported, if that can be.
  void Pend(Link& link, const PendingLease& lease);
  // Withdraws what no lease needs until `count` more exports are within the limit. False: they
  // cannot be.
  bool MakeRoom(Link& link, uint32_t count);
  // It goes on though its region is not exported, for want of room. Logged once for a link.
  void LeaseUnexported(Link& link, const PendingLease& lease, const absl::Status& why);
  void PostExport(Link& link, const memory::RegionRef& region);
  void OnExported(Link& link, uint64_t buffer, const absl::Status& status);
  void VoidLeases(Link& link, const Lane* lane);

  // Ends (shm_links.cc)
  void TakeResults();
  void OnTaken(Link& link, const JobResult& result);
  void BeginDown(Link& link, const absl::Status& cause);
  // The same, and tells the session.
  void Fail(Link& link, const absl::Status& cause);
  bool AdvanceEnds();
  void Deliver(EventSink& sink);
  absl::Status Remove(Link& link);
  void Forget(std::unique_ptr<Link> link);

  void OnTransferDone(ReadSlot slot, Error error, Path path) override;
  void OnTransferOrdered(ReadSlot slot, Path path) override;
  void Wake(Link& link) override { WakePeer(link); }
  void OnViolation(Link& link, const absl::Status& cause) override {
    if (!link.closing) Fail(link, cause);
  }
  void MakeStages(Link& link) override;
  void ShowStages(Link& link) override;
  void OnStagesExported(Link& link, bool ok);
  void Answered(Link& link) override { WakePeer(link); }
  Link* LinkOf(LinkId id, uint64_t serial) override {
    Link* const link = Find(id);
    return link == nullptr || link->serial != serial ? nullptr : link;
  }
  bool OrderedSoon() const;
  bool MayEnd(const Link& link) const;
  bool WaitedEnough(const Link& link) const;
  // Whether what revocations wait for, or memory is kept for, has ended.
  bool EndedMeanwhile() const;
  void SetTimer(int64_t after_ns);
  // For what a sleeping fabric looks at by itself.
  void SetTimerIfAny();
  void WantImport(Link& link, const Want& want) override;
  void PostTake(Link& link);
  void Withdraw(uint64_t buffer);
  void PostWithdrawal(Link& link, uint64_t buffer);

  const ShmOptions options_;
  Traits traits_;
  std::shared_ptr<Inbox> inbox_;
  int epoll_fd_ = -1;

  mutable std::mutex preparing_mutex_;
  std::map<LinkId, std::unique_ptr<Link>> preparing_;  // until Start
  uint64_t next_serial_ = 1;

  std::vector<std::unique_ptr<Link>> links_;  // by number
  std::vector<Link*> hot_, cold_, closing_;
  size_t next_cold_ = 0;
  bool scan_cold_ = false;
  SendBuffers buffers_;
  std::vector<LinkId> want_buffer_;
  std::vector<LeaseRecord> lease_records_;  // by LeaseSlot::index
  std::vector<LaneBreak> lane_breaks_;      // reported when their copies have ended
  Transfers transfers_;
  StageServer stages_;
  std::vector<Ending> endings_;
  std::vector<Ending> kept_;  // answered, and still read by streams of peers that are there
  Quarantine quarantine_;
  std::vector<LinkId> ending_;  // not told yet
  Events events_;
  uint32_t ticks_ = 0;
  uint32_t busy_ticks_ = 0;  // counts down since frames last came
  int64_t housekept_ns_ = 0;
  int64_t armed_ns_ = 0;  // when it was armed last
  int64_t hangups_checked_ns_ = 0;
  int64_t ordered_ns_ = 0;  // when a copy was ordered into a stream last
  int timer_fd_ = -1;       // while some are
  uint32_t cpu_ = ~0u;
  bool armed_ = false;
  alignas(64) std::byte frame_[kRingBytes];  // the frame that the sink looks at
};

}  // namespace verbena::fabric::shm
