#pragma once
// TcpFabric: links over stream sockets. Frames go over the connection on which HELLO was exchanged
// (frame_stream.h); each bulk lane is a connection of its own (bulk_wire.h), so that large
// transfers do not sit in front of small messages. READs are served by the owner's Poll from the
// lease table (bulk_owner.h), a chunk at a time, bounds and lease checked.
//
// The client of a link makes all its connections, to the address where it said HELLO; the server's
// listener hands them over (join_table.h).
//
// While few links are active their sockets are read directly, without asking epoll first: one
// receive and one send per message. Those that stay active leave epoll until the fabric is armed.
// The others, and all when many are active, are found by epoll. While frames flow, only little of
// the bulk lanes is served per tick.
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "rpc/fabric/device_copies.h"
#include "rpc/fabric/events.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/tcp/inbox.h"
#include "rpc/fabric/tcp/join_table.h"
#include "rpc/fabric/tcp/lease_table.h"
#include "rpc/fabric/tcp/link.h"
#include "rpc/fabric/tcp/sockets.h"

namespace verbena::fabric::tcp {

struct TcpOptions {
  // Where this process accepts bulk connections, if not at the address where HELLO was exchanged;
  // 0 = there. On the same host.
  uint16_t lane_port = 0;
  // Socket buffers; 0 = as the system tunes them. Small ones are for tests.
  int socket_buffer_bytes = 0;
};

class TcpFabric final : public Fabric {
 public:
  explicit TcpFabric(const TcpOptions& options = {});
  ~TcpFabric() override;

  const Traits& traits() const override { return traits_; }
  absl::StatusOr<Offer> Prepare(LinkId link, Side side, absl::string_view peer_blob) override;
  absl::Status Complete(LinkId link, Offer peer, Sockets& sockets) override;
  void Abandon(LinkId link) override;
  absl::StatusOr<Offer> PrepareLane(LinkId link, Lane lane) override;
  absl::Status CompleteLane(LinkId link, Lane lane, Offer peer) override;
  void Start(LinkId link) override;
  bool AcquireFrame(LinkId link, OutFrame& frame) override;
  void Send(LinkId link, absl::Span<const OutFrame> frames) override;
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

 private:
  // A lane being set up, or that was. Guarded by setup_mutex_.
  struct LaneSetup {
    Lane lane;
    Token token{};
    bool waits = false;  // the token is in the join table
    bool broken = false;
  };
  struct Setup {
    Side side = Side::kClient;
    uint64_t serial = 0;
    int stream = -1;  // until Start
    Address peer;
    std::vector<LaneSetup> lanes;
  };
  struct LaneBreak {
    LinkId link;
    Lane lane;
  };
  struct UncopiedRead {
    LaneEnd* end;
    BulkReader::PostedRead read;
  };

  Link* Find(LinkId link) const {
    const auto index = static_cast<size_t>(link);
    return index < links_.size() ? links_[index].get() : nullptr;
  }

  // Setting up (tcp_setup.cc)
  static LaneSetup& LaneSetupOf(Setup& setup, Lane lane);
  void ForgetLane(LinkId link, Lane lane, bool& was_prepared);
  void ForgetLink(LinkId link);
  void SizeBuffers(int fd) const;

  // Polling (tcp_poll.cc)
  bool Reports() const;
  bool PollAll(EventSink& sink);
  bool PollControl(Link& link, EventSink& sink);
  bool Scan(EventSink& sink);
  bool TakeSocketEvent(uint64_t name, uint32_t ready, EventSink& sink);
  bool FlushBacklogs();
  void FlushBacklog(Link& link, bool& moved);
  void Backlogged(Link& link);
  void OfferBuffers();
  void Heat(Link& link);
  void CoolIdle();
  void WatchHot();
  void WatchControl(Link& link);
  void UnwatchControl(Link& link);
  void Watch(int fd, uint64_t name, bool out, bool add);
  void Unwatch(int fd);
  void ArmOut(Link& link);
  void ArmOut(LaneEnd& end);

  // Bulk lanes (tcp_lanes.cc)
  void TakeNews();
  void OpenEnd(LaneEnd& end, const LaneNews& news);
  LaneEnd* UpEnd(Link& link, Lane lane);
  void Engage(LaneEnd& end);
  bool PollLanes();
  absl::Status PollLane(LaneEnd& end, size_t& serve, size_t& receive, bool& moved);
  void OnRead(LaneEnd& end, BulkReader::PostedRead& read, Error error);
  bool PollCopies();
  void OnCopied(const DeviceCopies::Job& job, bool ok);
  void ReadDone(ReadSlot slot, Error error) { events_.ReadDone(slot, error); }

  // Ends (tcp_ends.cc)
  void BreakEnd(LaneEnd& end, Error reads);
  void BeginDown(Link& link, const absl::Status& cause);
  void DropUncopied(const LaneEnd& end, Error error);
  bool AdvanceEnds();
  void Deliver(EventSink& sink);
  absl::Status Remove(Link& link);

  const TcpOptions options_;
  Traits traits_;
  std::shared_ptr<Inbox> inbox_;
  int epoll_fd_ = -1;
  size_t watched_ = 0;  // sockets that are in it, or were left out for a while

  std::mutex setup_mutex_;
  std::map<LinkId, Setup> setups_;
  uint64_t next_serial_ = 1;

  FramePool pool_;
  ReceiveBuffers buffers_;
  LeaseTable leases_;
  DeviceCopies copies_;
  std::vector<std::unique_ptr<Link>> links_;  // by number
  std::vector<Link*> hot_, backlogged_, closing_;
  std::vector<LinkId> want_buffer_;
  bool buffers_came_back_ = false;
  std::vector<LaneEnd*> engaged_;
  std::deque<UncopiedRead> uncopied_;   // wait for room in their device's queue
  std::vector<LaneBreak> lane_breaks_;  // reported when their copies have ended
  Events events_;
  uint64_t ticks_ = 0;
  bool bulk_waited_ = false;  // in this tick
  uint32_t busy_ticks_ = 0;   // counts down since frames last came
  bool scan_ = false;         // epoll may have something
  size_t unscanned_ = 0;      // direct reads since it was asked
  bool was_armed_ = false;    // since hot links were looked through
  int64_t armed_ns_ = 0;      // when it was armed last
};

}  // namespace verbena::fabric::tcp
