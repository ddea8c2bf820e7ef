#pragma once
// All links of one reactor. What a call of ours must not do inline is queued here and done in the
// next poll: OnReply of calls that failed, OnDone of fetches, the end of replies and leases,
// closing, and the end of links.
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/limits.h"
#include "rpc/base/mpsc_queue.h"
#include "rpc/session/engine.h"
#include "rpc/session/frame_writer.h"
#include "rpc/session/leases.h"
#include "rpc/session/payload_set.h"
#include "rpc/session/transfers.h"
#include "rpc/wire/message.h"

namespace verbena::session {

class LinkImpl;

class EngineImpl final : public Engine, public reactor::Poller, public fabric::EventSink {
 public:
  EngineImpl(reactor::Reactor& reactor, std::vector<std::unique_ptr<fabric::Fabric>> fabrics,
             const EngineOptions& options);
  ~EngineImpl() override;

  // ---- Engine
  reactor::Reactor& reactor() override { return reactor_; }
  fabric::Fabric* FindFabric(absl::string_view name) override;
  absl::Span<const std::unique_ptr<fabric::Fabric>> fabrics() const override { return fabrics_; }
  absl::StatusOr<LinkId> ReserveLink() override;
  void ReturnLink(LinkId id) override;
  void Adopt(const LinkSetup& setup, LinkOwner* owner, RequestSink* sink,
             absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> proved) override;
  std::vector<Link*> Links() override;
  Counters counters() const override;

  // ---- reactor::Poller
  bool Poll(int64_t now_ns) override;
  void Flush() override;
  bool HasLater() const override;
  bool Arm() override;
  void Disarm() override;
  int fd() const override { return fd_; }
  bool PeerOnThisCpu() const override;
  int64_t expects_until_ns() const override;
  bool Awaits() const override;

  // ---- fabric::EventSink
  void OnFrame(LinkId link, absl::Span<const std::byte> frame) override;
  void OnSendable(LinkId link) override;
  void OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key) override;
  void OnRevoked(LeaseSlot slot) override;
  void OnReadDone(ReadSlot slot, Error error) override;
  void OnReadPath(ReadSlot slot, Path path) override;
  void OnReadOrdered(ReadSlot slot) override;
  void OnLaneDown(LinkId link, Lane lane, Error cause) override;
  void OnLinkEnding(LinkId link, const absl::Status& cause) override;
  void OnLinkDown(LinkId link, const absl::Status& cause) override;

  // ---- links and their parts
  const EngineOptions& options() const { return options_; }
  int64_t now_ns() const { return reactor_.now_ns(); }
  int64_t revoke_grace_ns() const { return absl::ToInt64Nanoseconds(options_.revoke_grace); }
  int64_t admission_timeout_ns() const {
    return absl::ToInt64Nanoseconds(options_.admission_timeout);
  }
  List<FrameWriter>& dirty() { return dirty_; }
  LeaseTable& leases() { return leases_; }
  ReadTable& reads() { return reads_; }
  // Of those that stand in streams; they come and go as the streams like.
  uint32_t reads_standing() const { return reads_standing_; }
  void CountStanding(int more) { reads_standing_ += static_cast<uint32_t>(more); }
  // No other can be posted now.
  bool reads_full() const { return reads_.size() - reads_standing_ >= limits::kReadsInFlightMax; }
  const std::shared_ptr<EngineGate>& gate() const { return gate_; }
  const absl::Status& ok_status() const { return ok_status_; }
  wire::MessageView& scratch_view() { return scratch_view_; }
  // For messages that are a body and nothing else: the other members stay empty.
  RequestView& plain_request() { return plain_request_; }
  ReplyView& plain_reply() { return plain_reply_; }
  LinkImpl* FindLink(LinkId id, uint64_t serial);
  // Any thread. `work` runs in a poll, soon; it must stay until then.
  void RunInSeat(reactor::Work& work);
  // `job` on the setup thread, then `then` in the seat, also when the link went down meanwhile: it
  // stays until both have run.
  void OnSetupThread(LinkImpl& link, absl::AnyInvocable<void()> job,
                     absl::AnyInvocable<void()> then);

  void FailLater(ClientCall& call, const absl::Status& why) {
    later_ = true;
    failed_.emplace_back(&call, why);
  }
  void DoneLater(Fetch& fetch, absl::Status status) {
    later_ = true;
    done_.emplace_back(&fetch, std::move(status));
  }
  void ReplyEndedLater(ServerCall& call) {
    later_ = true;
    ended_replies_.push_back(&call);
  }
  void NotifyLater(LeaseGroup& group);
  // Polls it until it waits for no device any more.
  void AwaitReady(ReadyWaiter& waiter);
  void ForgetAwaiting(const ReadyWaiter& waiter);
  void Forget(LeaseGroup& group);
  void CloseLater(LinkImpl& link) {
    later_ = true;
    closing_.push_back(&link);
  }
  void LaneFailedLater(LinkImpl& link);
  void AddDraining(LinkImpl& link) {
    later_ = true;
    draining_.push_back(&link);
  }
  void AddDying(LinkImpl& link) {
    later_ = true;
    dying_.push_back(&link);
  }
  void WaitForReads(LinkImpl& link);
  void PumpWaiting();

  // `bytes` were announced to a peer, which will READ them and say so.
  void ExpectRelease(uint64_t bytes);

  void CountSent() { ++counters_.messages_sent; }
  void CountReceived() { ++counters_.messages_received; }
  void CountRead(uint64_t bytes) { ++counters_.reads, counters_.read_bytes += bytes; }
  void CountLeases(int64_t change) { counters_.leases_live += static_cast<uint64_t>(change); }
  void CountFetches(int64_t change) { counters_.fetches_live += static_cast<uint64_t>(change); }
  void CountForced(uint64_t leases) { counters_.leases_forced += leases; }
  void CountCreditStall() { ++counters_.credit_stalls; }
  void CountUnknownCall() { ++counters_.unknown_calls; }

 private:
  LinkImpl* Find(LinkId id) const {
    const uint32_t index = static_cast<uint32_t>(id);
    return index < links_.size() ? links_[index] : nullptr;
  }
  bool RunLater();
  bool PollAwaiting(int64_t now_ns);
  bool QueuedLater() const;
  bool RunInbox();
  bool RunClosing();
  bool FinishDying();
  void Remove(LinkImpl& link);
  void MakeFd();

  reactor::Reactor& reactor_;
  std::vector<std::unique_ptr<fabric::Fabric>> fabrics_;
  std::vector<fabric::Fabric*> gathering_;  // whose frames leave at the end of a tick
  const EngineOptions options_;
  std::shared_ptr<EngineGate> gate_;
  int fd_ = -1;
  int epoll_fd_ = -1;             // owned; where there are several fabrics
  std::vector<LinkImpl*> links_;  // by LinkId; owned
  uint64_t next_serial_ = 1;
  LeaseTable leases_;
  ReadTable reads_;
  uint32_t reads_standing_ = 0;
  absl::Status ok_status_;
  wire::MessageView scratch_view_;
  RequestView plain_request_;
  ReplyView plain_reply_;

  // Has the inbox looked into by whoever holds the seat next. On the heap: it may still be queued
  // when we die.
  struct WakeWork : reactor::Work {
    explicit WakeWork(EngineImpl& e)
        : reactor::Work([](reactor::Work* work) { static_cast<WakeWork*>(work)->Ran(); }),
          engine(e) {}
    void Ran() {
      if (state.exchange(kIdle) == kOrphan) {
        delete this;
      } else {
        engine.RunInbox();
      }
    }
    enum : int { kIdle, kPosted, kOrphan };
    std::atomic<int> state{kIdle};
    EngineImpl& engine;
  };
  MpscQueue<reactor::Work> inbox_;
  WakeWork* wake_work_ = new WakeWork(*this);

  int64_t expects_until_ns_ = 0;
  bool later_ = false;  // RunLater has something to look at
  std::vector<std::pair<ClientCall*, absl::Status>> failed_, failing_;
  std::vector<std::pair<Fetch*, absl::Status>> done_, finishing_;
  std::vector<ServerCall*> ended_replies_, ending_replies_;
  std::vector<LeaseGroup*> notify_, notifying_;
  std::vector<ReadyWaiter*> awaiting_;  // null: forgotten
  int64_t awaiting_since_ns_ = 0;       // since the last of them was ready, or the first came
  int64_t asked_ns_ = 0;                // when the devices were asked last whether they failed
  reactor::Timer awaiting_timer_{[](reactor::Timer*) {}};  // the poll that follows is what counts
  List<FrameWriter> dirty_;
  std::vector<LinkImpl*> closing_;
  std::vector<LinkImpl*> lane_failed_;
  std::vector<LinkImpl*> draining_;
  std::vector<LinkImpl*> dying_;
  std::vector<LinkImpl*> waiting_for_reads_;

  absl::Mutex ids_mutex_;
  std::vector<uint32_t> free_ids_ ABSL_GUARDED_BY(ids_mutex_);
  uint32_t ids_used_ ABSL_GUARDED_BY(ids_mutex_) = 0;
  Counters counters_;
};

}  // namespace verbena::session
