// Bulk lanes in use: leases, READs, and their share of each tick.
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/tcp/socket_name.h"
#include "rpc/fabric/tcp/tcp_fabric.h"

namespace verbena::fabric::tcp {
namespace {

// What bulk lanes may move per tick and direction: while frames flow, and else. The first bounds
// how long a small message waits behind bulk (a few microseconds), the second how long other work
// of the reactor's does.
constexpr size_t kBusyBytes = 32 * 1024;
constexpr size_t kIdleBytes = 1 << 20;
// Ticks without a byte after which a lane is left to epoll.
constexpr uint32_t kIdleTicksMax = 256;

size_t BytesOf(absl::Span<const LocalPiece> pieces) {
  size_t bytes = 0;
  for (const LocalPiece& piece : pieces) bytes += piece.bytes;
  return bytes;
}

}  // namespace

void TcpFabric::TakeNews() {
  for (const LaneNews& news : inbox_->Take()) {
    Link* link = Find(news.link);
    const bool known = link != nullptr && link->serial == news.link_serial && !link->closing;
    LaneEnd* end = known ? &link->EndOf(news.lane) : nullptr;
    if (end != nullptr && news.lane.generation > end->broken_generation) {
      OpenEnd(*end, news);
    } else if (news.fd >= 0) {
      close(news.fd);
    }
  }
}

void TcpFabric::OpenEnd(LaneEnd& end, const LaneNews& news) {
  const Link& link = *end.link;
  if (end.exists() && end.lane.generation < news.lane.generation) BreakEnd(end, Error::kLaneDown);
  if (!end.exists()) {
    end.lane = news.lane;
    if (end.lane.role == LaneRole::kOwner) {
      end.owner = std::make_unique<BulkOwner>(link.id, link.serial, end.lane, leases_, copies_);
    } else {
      end.reader = std::make_unique<BulkReader>(buffers_.shared());
    }
  }
  end.completed |= news.completed;
  if (news.fd < 0) return;
  if (end.fd() >= 0) {  // no honest peer has two connections for a lane; a token is used once
    close(news.fd);
    return;
  }
  SizeBuffers(news.fd);
  if (end.owner != nullptr) {
    end.owner->Open(news.fd);
  } else {
    end.reader->Open(news.fd);
  }
  if (news.greeting != Token{}) {
    WriteGreeting(news.greeting, end.greeting.data());
    end.greeting_left = kGreetingBytes;
  }
  Watch(news.fd, SocketName::Bulk(link.id, link.serial, end.lane).word(), false, true);
  Engage(end);
}

LaneEnd* TcpFabric::UpEnd(Link& link, Lane lane) {
  if (inbox_->any()) TakeNews();
  if (lane.index >= kLanesMax) return nullptr;
  LaneEnd& end = link.EndOf(lane);
  return end.completed && end.lane == lane ? &end : nullptr;
}

void TcpFabric::Engage(LaneEnd& end) {
  end.idle_ticks = 0;
  if (end.engaged) return;
  end.engaged = true;
  engaged_.push_back(&end);
}

bool TcpFabric::PollLanes() {
  size_t serve = busy_ticks_ > 0 ? kBusyBytes : kIdleBytes;
  size_t receive = serve;
  bool any = false;
  const size_t count = engaged_.size();
  for (size_t i = 0; i < count; ++i) {
    LaneEnd& end = *engaged_[(ticks_ + i) % count];  // another first, each tick
    if (!end.exists()) continue;
    bool moved = false;
    const absl::Status status = PollLane(end, serve, receive, moved);
    end.idle_ticks = moved ? 0 : end.idle_ticks + 1;
    any |= moved;
    if (status.ok()) [[likely]]
      continue;
    any = true;
    if (absl::IsUnavailable(status)) {
      BreakEnd(end, Error::kLaneDown);
    } else {
      BeginDown(*end.link, status);
    }
  }
  std::erase_if(engaged_, [this](LaneEnd* end) {
    end->engaged = end->exists() && (end->idle_ticks < kIdleTicksMax || end->ready());
    if (!end->engaged && end->fd() >= 0 && end->blocked() && !end->out_armed) ArmOut(*end);
    if (!end->engaged && end->owner != nullptr) end->owner->Rest();
    if (!end->engaged && end->reader != nullptr) end->reader->Rest();
    return !end->engaged;
  });
  return any;
}

absl::Status TcpFabric::PollLane(LaneEnd& end, size_t& serve, size_t& receive, bool& moved) {
  if (end.fd() < 0) return absl::OkStatus();
  if (end.greeting_left > 0) {
    const std::byte* from = end.greeting.data() + kGreetingBytes - end.greeting_left;
    const ssize_t n = send(end.fd(), from, end.greeting_left, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0 && errno != EAGAIN && errno != EINTR) {
      return SystemError(absl::StatusCode::kUnavailable, "a bulk lane");
    }
    if (n > 0) end.greeting_left -= static_cast<size_t>(n);
    if (end.greeting_left > 0) return absl::OkStatus();
    moved = true;
  }
  if (end.owner != nullptr) {
    if (absl::Status status = end.owner->Receive(moved); !status.ok()) return status;
    return end.owner->Serve(serve, moved);
  }
  if (absl::Status status = end.reader->Flush(moved); !status.ok()) return status;
  return end.reader->Receive(
      [&](BulkReader::PostedRead& read, Error error) { OnRead(end, read, error); }, receive, moved);
}

void TcpFabric::Lease(LeaseSlot slot, LinkId id, Lane lane, const memory::RegionRef& region,
                      const std::byte* data, size_t bytes) {
  VERBENA_CHECK(data >= region->base() && bytes <= region->bytes() &&
                static_cast<size_t>(data - region->base()) <= region->bytes() - bytes);
  Link* link = Find(id);
  if (link == nullptr || link->closing) return events_.LeaseRefused(slot, Error::kLinkDown);
  if (lane.role != LaneRole::kOwner || UpEnd(*link, lane) == nullptr) {
    return events_.LeaseRefused(slot, Error::kLaneDown);
  }
  events_.Leased(slot, leases_.Add(slot, id, lane, region, data, bytes));
  Engage(link->EndOf(lane));  // a request follows soon
}

void TcpFabric::Revoke(LeaseSlot slot) {
  if (leases_.Revoke(slot)) events_.Revoked(slot);
}

void TcpFabric::Read(ReadSlot slot, LinkId id, Lane lane, const RemoteKey& key, uint64_t offset,
                     absl::Span<const LocalPiece> pieces) {
  const size_t bytes = BytesOf(pieces);
  VERBENA_CHECK(bytes <= kChunkBytesMax, "a READ of ", bytes, " bytes, limit ", kChunkBytesMax);
  Link* link = Find(id);
  if (link == nullptr || link->closing) return ReadDone(slot, Error::kLinkDown);
  LaneEnd* end = lane.role == LaneRole::kReader ? UpEnd(*link, lane) : nullptr;
  if (end == nullptr) return ReadDone(slot, Error::kLaneDown);
  BulkReader::PostedRead read;
  read.slot = slot;
  read.key = key;
  read.offset = offset;
  read.bytes = static_cast<uint32_t>(bytes);
  read.pieces.assign(pieces.begin(), pieces.end());
  for (const LocalPiece& piece : pieces) {
    if (bytes != 0 && !piece.device->host_accessible()) read.device = piece.device;
  }
  end->reader->Post(std::move(read));
  Engage(*end);
}

void TcpFabric::OnRead(LaneEnd& end, BulkReader::PostedRead& read, Error error) {
  if (read.stage != Stages::kNone && error == Error::kOk) {
    uncopied_.push_back({&end, std::move(read)});
    return;
  }
  if (read.stage != Stages::kNone) read.stages->Give(read.stage);
  ReadDone(read.slot, error);
}

bool TcpFabric::PollCopies() {
  while (!uncopied_.empty()) {
    const UncopiedRead& waiting = uncopied_.front();
    const BulkReader::PostedRead& read = waiting.read;
    absl::InlinedVector<memory::CopyPiece, 4> pieces;
    const std::byte* from = read.stages->At(read.stage);
    for (const LocalPiece& piece : read.pieces) {
      pieces.push_back({piece.data, from, piece.bytes});
      from += piece.bytes;
    }
    DeviceCopies::Job job;
    job.link = waiting.end->link->id;
    job.link_serial = waiting.end->link->serial;
    job.lane = waiting.end->lane;
    job.read = read.slot;
    job.stage = read.stage;
    job.stages = read.stages;
    if (!copies_.Start(*read.device, pieces, job)) break;
    uncopied_.pop_front();
  }
  copies_.Poll([this](const DeviceCopies::Job& job, bool ok) { OnCopied(job, ok); });
  return true;
}

// A link outlives its copies: it is removed when the last has ended.
void TcpFabric::OnCopied(const DeviceCopies::Job& job, bool ok) {
  Link* link = Find(job.link);
  VERBENA_CHECK(link != nullptr && link->serial == job.link_serial);
  LaneEnd& end = link->EndOf(job.lane);
  const bool same = end.exists() && end.lane == job.lane;
  if (job.lane.role == LaneRole::kReader) {
    job.stages->Give(job.stage);
    ReadDone(job.read, ok ? Error::kOk : Error::kFault);
  } else {
    if (leases_.EndCopy(job.lease)) events_.Revoked(job.lease);
    if (same) end.owner->OnStaged(job.place, ok);
  }
  if (same) Engage(end);
}

}  // namespace verbena::fabric::tcp
