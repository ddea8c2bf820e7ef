// What runs on the setup thread: links and lanes before they are used.
#include <sys/epoll.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/tcp/tcp_fabric.h"

namespace verbena::fabric::tcp {
namespace {

// Frames and slots are one. Fewer, and a burst of large messages waits for grants; more, and a peer
// may have more than 2 MiB under way.
constexpr uint32_t kWindowFrames = 32;
static_assert(kWindowFrames <= limits::kTcpFramesPerLinkMax);
// A send costs microseconds; more of them than this per open frame gain nothing.
constexpr uint32_t kPublishBytes = 4096;
// 4 MiB: enough to keep both ends copying while requests go back and forth.
constexpr uint32_t kReadsInFlight = 16;
static_assert(kReadsInFlight <= kRequestsMax);

}  // namespace

TcpFabric::TcpFabric(const TcpOptions& options)
    : options_(options),
      inbox_(std::make_shared<Inbox>()),
      epoll_fd_(epoll_create1(EPOLL_CLOEXEC)) {
  VERBENA_CHECK(epoll_fd_ >= 0, "epoll_create1: errno ", errno);
  Watch(inbox_->bell(), ~uint64_t{0}, false, true);
  watched_ = 0;  // the bell is looked at without the kernel
  traits_.name = "tcp";
  traits_.path = Path::kStream;
  traits_.device_path = Path::kPinnedStaging;
  traits_.segment_bytes = limits::kTcpSegmentBytes;
  traits_.slot_bytes = limits::kTcpSegmentBytes;
  traits_.window_slots = kWindowFrames;
  traits_.publish_bytes = kPublishBytes;
  traits_.read_chunk_bytes = kChunkBytes;
  traits_.device_chunk_bytes = kChunkBytesMax;
  traits_.reads_in_flight = kReadsInFlight;
  traits_.prepares_lanes = true;
  traits_.revocation = Revocation::kTable;
  traits_.bounds_enforced = true;
}

TcpFabric::~TcpFabric() {
  inbox_->Close();
  while (!setups_.empty()) ForgetLink(setups_.begin()->first);
  links_.clear();
  close(epoll_fd_);
}

absl::StatusOr<Offer> TcpFabric::Prepare(LinkId id, Side side, absl::string_view) {
  const std::lock_guard lock(setup_mutex_);
  Setup setup;
  setup.side = side;
  setup.serial = next_serial_++;
  if (!setups_.emplace(id, std::move(setup)).second) {
    return absl::FailedPreconditionError(
        absl::StrCat("tcp: link ", static_cast<uint32_t>(id), " is in use"));
  }
  Offer offer;
  offer.blob = LinkOfferBlob();
  return offer;
}

absl::Status TcpFabric::Complete(LinkId id, Offer peer, Sockets& sockets) {
  absl::Status status = CheckLinkOffer(peer.blob);
  if (status.ok() && sockets.stream < 0) {
    status = absl::InvalidArgumentError("tcp: no stream socket was given");
  }
  absl::StatusOr<Address> address;
  if (status.ok()) {
    address = PeerOf(sockets.stream);
    status = address.status();
  }
  if (!status.ok()) {
    Abandon(id);
    return status;
  }
  PrepareSocket(sockets.stream);
  UnpaceWithinHost(sockets.stream);
  SizeBuffers(sockets.stream);
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  VERBENA_CHECK(it != setups_.end(), "Complete without Prepare");
  it->second.stream = std::exchange(sockets.stream, -1);
  it->second.peer = *address;
  return absl::OkStatus();
}

void TcpFabric::Abandon(LinkId id) { ForgetLink(id); }

TcpFabric::LaneSetup& TcpFabric::LaneSetupOf(Setup& setup, Lane lane) {
  for (LaneSetup& known : setup.lanes) {
    if (known.lane.index == lane.index && known.lane.role == lane.role) return known;
  }
  setup.lanes.emplace_back();
  setup.lanes.back().lane = Lane{lane.index, lane.role, 0};
  return setup.lanes.back();
}

absl::StatusOr<Offer> TcpFabric::PrepareLane(LinkId id, Lane lane) {
  if (lane.index >= kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: lane ", lane.index, " of at most ", kLanesMax));
  }
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  if (it == setups_.end()) return absl::UnavailableError("tcp: the link is down");
  LaneSetup& known = LaneSetupOf(it->second, lane);
  if (lane.generation <= known.lane.generation) {
    return absl::FailedPreconditionError(absl::StrCat("tcp: lane ", lane.index, " has generation ",
                                                      known.lane.generation, ", asked for ",
                                                      lane.generation));
  }
  if (known.waits) JoinTable::Get().Forget(known.token);
  known = LaneSetup();
  known.lane = lane;
  LaneOffer blob;
  blob.index = lane.index;
  blob.generation = lane.generation;
  if (it->second.side == Side::kServer) {
    LaneNews news;
    news.link = id;
    news.link_serial = it->second.serial;
    news.lane = lane;
    known.token = JoinTable::Get().Expect(inbox_, news);
    known.waits = true;
    blob.token = known.token;
    blob.port = options_.lane_port;
  }
  Offer offer;
  offer.blob = LaneOfferBlob(blob);
  return offer;
}

absl::Status TcpFabric::CompleteLane(LinkId id, Lane lane, Offer peer) {
  const absl::StatusOr<LaneOffer> blob = ParseLaneOffer(peer.blob);
  if (!blob.ok()) return blob.status();
  if (blob->index != lane.index || blob->generation != lane.generation) {
    return absl::InvalidArgumentError(absl::StrCat("tcp: an offer of lane ", blob->index,
                                                   " generation ", blob->generation, ", expected ",
                                                   lane.index, " generation ", lane.generation));
  }
  LaneNews news;
  news.link = id;
  news.lane = lane;
  news.completed = true;
  Address to;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    if (it == setups_.end()) return absl::UnavailableError("tcp: the link is down");
    const LaneSetup& known = LaneSetupOf(it->second, lane);
    if (!(known.lane == lane) || known.broken) {
      return absl::FailedPreconditionError("tcp: the lane was not prepared, or has been broken");
    }
    news.link_serial = it->second.serial;
    if (it->second.side == Side::kClient) {
      to = blob->port == 0 ? it->second.peer : WithPort(it->second.peer, blob->port);
      news.greeting = blob->token;
    }
  }
  if (to.bytes > 0) {
    absl::StatusOr<int> connected = StartConnect(to);
    if (!connected.ok()) return connected.status();
    news.fd = *connected;
  }
  inbox_->Post(news);
  return absl::OkStatus();
}

void TcpFabric::ForgetLane(LinkId id, Lane lane, bool& was_prepared) {
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  if (it == setups_.end()) return;
  LaneSetup& known = LaneSetupOf(it->second, lane);
  if (!(known.lane == lane) || known.broken) return;
  was_prepared = true;
  known.broken = true;
  if (known.waits) JoinTable::Get().Forget(known.token);
  known.waits = false;
}

void TcpFabric::ForgetLink(LinkId id) {
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  if (it == setups_.end()) return;
  for (const LaneSetup& known : it->second.lanes) {
    if (known.waits) JoinTable::Get().Forget(known.token);
  }
  EndSocket(it->second.stream);
  setups_.erase(it);
}

void TcpFabric::SizeBuffers(int fd) const {
  if (options_.socket_buffer_bytes == 0) return;
  const int bytes = options_.socket_buffer_bytes;
  (void)setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &bytes, sizeof bytes);
  (void)setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &bytes, sizeof bytes);
}

}  // namespace verbena::fabric::tcp
