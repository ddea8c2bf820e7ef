#pragma once
// VerbsFabric: links over RDMA. Each link has a control lane, an RC queue pair whose receives come
// from the pool that all links of the reactor share, and which allows no remote access; and for
// each direction that READs a bulk lane, an RC queue pair of its own, since a READ on a key that
// was taken back costs the queue pair. The reader's end of a bulk lane posts READs and nothing
// else, the owner's end BIND and LOCAL_INV.
//
// Nothing slow is called here: queue pairs are made, moved and destroyed, memory is registered and
// windows are allocated by jobs on the setup thread, whose results come through the inbox.
//
// Memory of a device is read and written by the NIC itself where it can be registered
// (device_memory.h); such a lease is a registration of its own on every rung, since windows are not
// bound to those. Else it goes by way of host memory, at the owner's end (lease_copy.h) and at the
// reader's (stages.h). The path says which.
//
// One port of one device serves a fabric. Frames that a tick hands over leave with one doorbell per
// link at its end.
#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/any_invocable.h"
#include "rpc/fabric/device_copies.h"
#include "rpc/fabric/events.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/verbs/buffers.h"
#include "rpc/fabric/verbs/counters.h"
#include "rpc/fabric/verbs/domain.h"
#include "rpc/fabric/verbs/ends.h"
#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/inbox.h"
#include "rpc/fabric/verbs/key.h"
#include "rpc/fabric/verbs/lease_copy.h"
#include "rpc/fabric/verbs/read_pace.h"
#include "rpc/fabric/verbs/seldom.h"
#include "rpc/fabric/verbs/sizes.h"
#include "rpc/fabric/verbs/work_id.h"

namespace verbena::fabric::verbs {

// Host copies of leased device memory that one reactor has at a time, unless told otherwise.
inline constexpr uint64_t kCopiedBytesMax = uint64_t{2} << 30;

struct VerbsOptions {
  PortAddress port;
  // Runs a job on the setup thread, never inline. Any thread. Required.
  std::function<void(absl::AnyInvocable<void() &&>)> post_setup;
  // How leases are taken back by force; nothing: the best that the device has.
  std::optional<Revocation> revocation;
  bool bounds_enforced = false;  // what the self-test says of windows
  int node = -1;                 // where buffers lie
  uint32_t links_max = limits::kVerbsLinksMax;
  bool srq = true;    // false: receives of each queue pair's own, as on devices without SRQs
  bool batch = true;  // false: each message leaves in a frame of its own. For measuring.
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  // Of device memory that the NIC cannot reach, this much may be leased at a time: it is copied
  // (lease_copy.h). A lease beyond it is refused.
  uint64_t copied_bytes_max = kCopiedBytesMax;
  bool gpu_direct = true;  // false: the NIC is not to reach devices by itself
};

class VerbsFabric final : public Fabric, private DeviceListener {
 public:
  // May take milliseconds. Errors: calls.h, sizes.h.
  static absl::StatusOr<std::unique_ptr<VerbsFabric>> Create(const VerbsOptions& options);
  ~VerbsFabric() override;

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
  // READs after frames: a device may do what is posted first in the poster's own time.
  void EndTick() override {
    if (!chained_.empty()) PostChains();
    if (!readers_.empty()) PostReads();
  }
  void Discard(LinkId link, const OutFrame& frame) override;
  void Lease(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
             const std::byte* data, size_t bytes) override;
  void Revoke(LeaseSlot slot) override { EndLease(slot, true); }
  void Release(LeaseSlot slot) override { EndLease(slot, false); }
  void Read(ReadSlot slot, LinkId link, Lane lane, const RemoteKey& key, uint64_t offset,
            absl::Span<const LocalPiece> pieces) override;
  void BreakLane(LinkId link, Lane lane) override;
  void Close(LinkId link) override;
  bool Poll(EventSink& sink) override;
  bool HasLater() const override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override { return epoll_fd_; }
  LinkCounters CountersOf(LinkId link) const override;

  // Reactor thread only.
  FabricCounters counters() const;
  const Sizes& sizes() const { return sizes_; }
  // Host memory that leases of device memory have as their copies.
  uint64_t copied_bytes() const { return copied_bytes_; }
  // For tests: the queue pairs of a link, to bring them into the error state from outside.
  std::vector<ibv_qp*> QueuePairsOf(LinkId link);

 private:
  struct Link {
    LinkId id = LinkId::kNone;
    uint64_t serial = 0;
    ControlEnd* control = nullptr;                        // null once it is gone
    std::array<ReaderEnd*, limits::kLanesMax> readers{};  // the newest generation
    std::array<OwnerEnd*, limits::kLanesMax> owners{};
    uint32_t ends = 0;  // that are not gone
    uint32_t jobs = 0;  // registrations being made or undone
    bool closing = false;
    bool down_queued = false;
    bool chained = false;         // in chained_
    bool wants_sendable = false;  // in want_buffer_
    bool bye_waits = false;       // for frames that wait for room
    absl::Status cause;
    uint64_t sent_in_poll = 0;    // the last in which frames left
    int64_t bye_deadline_ns = 0;  // 0: none is waited for
    LinkCounters counters;
  };
  // Before it is used: what the setup thread works on. Guarded by setup_mutex_.
  struct LaneSetup {
    Lane lane;
    std::unique_ptr<QueuePair> pair;
  };
  struct Setup {
    uint64_t serial = 0;
    std::optional<GidBytes> peer;  // where it is known
    std::string gid_text;          // of this end
    OwnedPair control;             // until Start
    uint32_t control_number = 0;
    std::vector<LaneSetup> lanes;
  };
  // What a receive brought.
  struct Received {
    uint32_t buffer = 0;
    uint32_t bytes = 0;
    bool immediate = false;
    uint32_t word = 0;  // of the immediate
  };
  // Work requests of SENDs, linked, with what is the same in all of them.
  struct SendScratch {
    SendScratch();
    std::array<ibv_send_wr, limits::kVerbsControlWorkMax> works{};
    std::array<ibv_sge, limits::kVerbsControlWorkMax> pieces{};
  };
  // For a link that has not started.
  struct EarlyFrame {
    uint32_t qp_number = 0;
    Received received;
    bool last = false;  // more came than the window holds, and was dropped
  };
  enum class LeaseState : uint8_t {
    kNone,
    kCopying,      // a device copies it to host memory
    kRegistering,  // a job makes its registration
    kBinding,      // waits for a window, its turn or its completion
    kLive,
    kEnding,  // LOCAL_INV, the deregistration, or the end of its queue pair; the answer follows
    kVoid,    // its lane is down
  };
  struct LeaseRecord {
    LeaseState state = LeaseState::kNone;
    uint32_t generation = 0;
    uint32_t end = 0;  // its lane's
    LinkId link = LinkId::kNone;
    bool end_wanted = false;
    bool forced = false;
    Error refusal = Error::kOk;  // kEnding of one that was never live: it is answered with this
    bool deregistering = false;  // a job undoes its registration
    ibv_mw* window = nullptr;
    ibv_mr* own = nullptr;
    uint32_t rkey = 0;
    const std::byte* data = nullptr;
    size_t bytes = 0;
    Source source = Source::kHost;
    Domain::Pin pin;
    std::unique_ptr<LeaseCopy> copy;
  };

  // A mapping of a device that a READ is to write and that is not registered.
  struct Unreached {
    memory::Device* device = nullptr;
    memory::Extent extent;
  };

  explicit VerbsFabric(const VerbsOptions& options);
  absl::Status Open();
  void OnDeviceEvent(DeviceEvent event, uint8_t port, uint32_t qp_number) override;

  Link* Find(LinkId link) const {
    const auto index = static_cast<size_t>(link);
    return index < links_.size() ? links_[index].get() : nullptr;
  }

  // Setting up (verbs_setup.cc)
  QueuePairOptions PairOptions() const;
  absl::StatusOr<OwnedPair> MakeControlPair(const std::optional<GidBytes>& peer);
  absl::StatusOr<PortAddress> PortNow();
  absl::StatusOr<PortAddress> PortTo(const std::optional<GidBytes>& peer);
  void AdoptLane(LinkId link, uint64_t serial, Lane lane, std::unique_ptr<QueuePair> pair);
  template <class LaneEnd>
  void Replace(LaneEnd*& newest, LaneEnd* by);
  void DestroyLater(OwnedPair owned);
  void ForgetSetup(LinkId link);
  // The job runs on the setup thread; what it returns runs in a later poll.
  void PostJob(absl::AnyInvocable<Inbox::News() &&> job);

  // Frames (verbs_frames.cc)
  void Chain(Link& link);
  void PostChains();
  void PostChain(Link& link);
  void GiveBackSent(ControlEnd& end, size_t count, size_t taken);
  void OnPostFailed(Link& link, int result);
  void SayBye(Link& link);
  void PostBye(Link& link);
  void OnSendDone(ControlEnd& end, const WorkId& id);
  void OnReceived(const ibv_wc& completion, EventSink& sink);
  Link* LinkOf(uint32_t qp_number);
  void DeliverFrame(Link& link, const Received& received, EventSink& sink);
  void KeepEarly(uint32_t qp_number, const Received& received);
  void DeliverEarly(EventSink& sink);
  void GiveBack(uint32_t buffer, uint32_t qp_number) {
    if (srq_ == nullptr) return GiveBackTo(buffer, qp_number);
    receives_->Give(buffer);
    if (receives_->MustRepost()) receives_->Repost();
  }
  void GiveBackTo(uint32_t buffer, uint32_t qp_number);
  bool Holds(uint32_t qp_number);
  void WantBuffer(Link& link);
  void OfferBuffers();
  void EndDeaf();

  // READs (verbs_reads.cc)
  ReaderEnd* UpReader(LinkId link, Lane lane);
  bool TakesPath(ReadId id, ReadRecord& read, ::verbena::Path here);
  void PlacePieces(ReadRecord& read, absl::Span<const LocalPiece> pieces,
                   std::vector<LocalPiece>& unknown);
  void RegisterPieces(ReadId id, std::vector<LocalPiece> unknown);
  void OnPiecesRegistered(ReadId id, absl::StatusOr<std::vector<ibv_mr*>> made);
  size_t PiecesOfWork(const ReadRecord& read, uint32_t& bytes) const;
  void ListReader(ReaderEnd& end);
  void PostReads();
  void PostReadsOf(ReaderEnd& end);
  void OnReadDone(ReaderEnd& end, const ibv_wc& completion);
  void FinishRead(ReadId id, ReadRecord& read);
  void DropWaiting(ReaderEnd& end, Error error);

  // READs into device memory by the NIC itself (verbs_direct.cc)
  void ReadIntoDevice(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces);
  bool PlaceDirect(ReadRecord& read, absl::Span<const LocalPiece> pieces,
                   std::vector<Unreached>& unreached);
  void OnDestinations(ReadId id, const std::vector<LocalPiece>& pieces, bool ok);
  void PostDirect(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces);
  void Flush(ReadId id, ReadRecord& read);
  void StartFlush(memory::Device& device);

  // READs into device memory, and leases of it, by way of the host's (verbs_staging.cc)
  void StageRead(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces);
  void GiveStages();
  void ReturnStage(ReadRecord& read);
  void CopyOut(ReadId id, ReadRecord& read);
  void CopyLease(LeaseSlot slot, LeaseRecord& record, Link& link, const memory::RegionRef& region);
  void OnLeaseBlock(LeaseSlot slot, absl::StatusOr<memory::Block> block);
  void PumpLeaseCopy(LeaseSlot slot, LeaseRecord& record);
  void EndLeaseCopy(LeaseSlot slot, LeaseRecord& record);
  bool PollCopies();
  bool BeginCopyOut(ReadId id, ReadRecord& read);
  void OnCopiedOut(ReadId id, bool ok);

  // Leases (verbs_leases.cc)
  LeaseRecord& RecordOf(LeaseSlot slot);
  LeaseRecord* RecordIf(LeaseSlot slot);
  OwnerEnd* UpOwner(LinkId link, Lane lane);
  void PlaceLease(LeaseSlot slot, LeaseRecord& record, Link& link, OwnerEnd& end);
  void RegisterLease(LeaseSlot slot, LeaseRecord& record, Link& link,
                     const memory::RegionRef& of_device = nullptr);
  void OnLeaseRegistered(LeaseSlot slot, LinkId link, absl::StatusOr<ibv_mr*> made,
                         const memory::RegionRef& of_device);
  void TakeWindow(LeaseSlot slot, LeaseRecord& record, OwnerEnd& end);
  void WantWindows();
  void OnWindows(std::vector<ibv_mw*> made, const absl::Status& status);
  void LeaseLive(LeaseSlot slot, LeaseRecord& record, const OwnerEnd& end);
  void EndLease(LeaseSlot slot, bool forced);
  void EndLive(LeaseSlot slot, LeaseRecord& record);
  void Deregister(LeaseSlot slot, LeaseRecord& record);
  void EndedNow(LeaseSlot slot, LeaseRecord& record);
  void AddWork(OwnerEnd& end, OwnerEnd::Work work);
  void PostOwned();
  void PostOwnedOf(OwnerEnd& end);
  void OnOwnDone(OwnerEnd& end, const WorkId& id, ibv_wc_status status);
  void OnBound(OwnerEnd& end, const OwnerEnd::Work& work, bool ok);
  void OnInvalidated(OwnerEnd& end, const OwnerEnd::Work& work, bool ok);
  void LookAtOwner(const OwnerEnd& end);
  void VoidLeases(OwnerEnd& end);
  void AnswerLeases(const OwnerEnd& end);

  // Ends (verbs_ends.cc)
  void AddEnd(Link& link, std::unique_ptr<End> end);
  void FailEnd(End& end);
  void OnFailed(uint32_t number, bool in_error);
  void OnDrained(End& end);
  void AbortReads(ReaderEnd& end);
  void OnDestroyed(uint32_t number, size_t windows, const std::vector<uint32_t>& receives);
  void BeginDown(Link& link, const absl::Status& cause, bool say_bye);
  void AdvanceDown(Link& link);
  void CheckByes();
  void CheckDraining();
  void OnQueuePairEvent(uint32_t qp_number);
  void OnDeviceFatal(DeviceEvent event);
  absl::Status Remove(LinkId link);

  // Polling (verbs_poll.cc)
  bool TakeNews();
  int TakeCompletions(ibv_cq* cq, absl::Span<ibv_wc> into);
  bool PollQueue(ibv_cq* cq, EventSink& sink);
  void OnCompletion(const ibv_wc& completion, EventSink& sink);
  void Deliver(EventSink& sink);
  void DrainChannel();

  const VerbsOptions options_;
  Traits traits_;
  Sizes sizes_;
  const std::shared_ptr<Inbox> inbox_;
  Domain* domain_ = nullptr;
  ibv_pd* pd_ = nullptr;  // of the control lanes
  ibv_comp_channel* channel_ = nullptr;
  ibv_cq* control_cq_ = nullptr;
  ibv_cq* bulk_cq_ = nullptr;
  ibv_srq* srq_ = nullptr;
  int epoll_fd_ = -1;
  std::unique_ptr<ReceivePool> receives_;
  std::unique_ptr<SendBuffers> sends_;

  mutable std::mutex setup_mutex_;
  std::map<LinkId, Setup> setups_;
  uint64_t next_serial_ = 1;
  PortAddress port_;  // as it is now
  std::atomic<bool> port_changed_{false};
  std::atomic<uint64_t> links_refused_{0};
  std::atomic<uint32_t> jobs_{0};  // under way on the setup thread

  std::vector<std::unique_ptr<Link>> links_;  // by number
  uint64_t copied_bytes_ = 0;                 // of all LeaseCopies, which it outlives
  Ends ends_;
  absl::flat_hash_map<uint32_t, Link*> by_qp_number_;  // whose control end is not gone
  uint32_t received_from_ = 0;                         // the last queue pair, and
  Link* receiver_ = nullptr;                           // its link, which by_qp_number_ has
  std::vector<Link*> chained_;
  std::vector<LinkId> want_buffer_, byes_, started_;
  SendScratch send_scratch_;
  std::vector<EarlyFrame> early_;
  std::vector<uint32_t> draining_;  // ends whose marker is posted
  // Completions that the bulk CQ still gives, or more where a device kept some to itself.
  uint64_t bulk_due_ = 0;
  SlotTable<ReadRecord, ReadRecordTag> reads_;
  std::deque<uint32_t> readers_;  // ends that want to post
  ReadPace read_pace_;
  std::vector<uint32_t> owners_;     // ends that want to post
  std::vector<LeaseRecord> leases_;  // by LeaseSlot::index
  std::deque<ibv_mw*> windows_;      // free; the one longest free is used next
  uint64_t windows_made_ = 0;        // and not deallocated
  std::vector<LeaseSlot> want_window_;
  bool windows_asked_ = false;
  std::shared_ptr<Stages> stages_;  // while READs are staged
  std::deque<ReadId> want_stage_;   // in turn; some of them may be gone
  struct Flushes {
    bool under_way = false;
    std::vector<ReadId> waiting;  // for the next
  };
  std::map<memory::Device*, Flushes> flushes_;
  std::deque<ReadId> uncopied_;          // wait for room in their device's queue
  std::vector<LeaseSlot> lease_copies_;  // being copied
  DeviceCopies copies_;                  // ends before what it copies to
  Events events_;
  uint64_t polls_ = 0;
  bool sendable_ = false;     // a buffer or a place in a send queue came back
  int64_t next_look_ns_ = 0;  // for peers that take nothing
  FabricCounters counters_;
  Seldom bad_destinations_, leases_refused_;  // warnings
  std::array<ibv_wc, 32> stash_;              // found while arming
  int stashed_ = 0;
  std::atomic<bool> broken_{false};  // a queue that all links share has failed
};

}  // namespace verbena::fabric::verbs
