// How lanes and links end, and what is reported.
#include <algorithm>
#include <utility>

#include "rpc/fabric/tcp/tcp_fabric.h"

namespace verbena::fabric::tcp {

void TcpFabric::BreakLane(LinkId id, Lane lane) {
  Link* link = Find(id);
  if (link == nullptr || link->closing || lane.index >= kLanesMax) return;
  if (inbox_->any()) TakeNews();
  LaneEnd& end = link->EndOf(lane);
  if (end.exists() && end.lane == lane) return BreakEnd(end, Error::kLaneDown);
  bool was_prepared = false;
  ForgetLane(id, lane, was_prepared);
  if (!was_prepared) return;
  end.broken_generation = std::max(end.broken_generation, lane.generation);
  lane_breaks_.push_back({id, lane});
}

void TcpFabric::BreakEnd(LaneEnd& end, Error reads) {
  const LinkId id = end.link->id;
  Unwatch(end.fd());
  if (end.owner != nullptr) {
    leases_.Void(id, &end.lane);
    end.owner.reset();
  } else {
    end.reader->FailAll(
        [&](BulkReader::PostedRead& read, Error error) { OnRead(end, read, error); }, reads);
    end.reader.reset();
    DropUncopied(end, reads);
  }
  end.completed = end.out_armed = false;
  end.greeting_left = 0;
  end.broken_generation = end.lane.generation;
  bool was_prepared = false;
  ForgetLane(id, end.lane, was_prepared);
  lane_breaks_.push_back({id, end.lane});
}

// READs whose bytes came, and have not been handed to their device.
void TcpFabric::DropUncopied(const LaneEnd& end, Error error) {
  std::erase_if(uncopied_, [&](const UncopiedRead& waiting) {
    if (waiting.end != &end) return false;
    ReadDone(waiting.read.slot, error);
    return true;
  });
}

void TcpFabric::Close(LinkId id) {
  Link* link = Find(id);
  if (link != nullptr && !link->closing) BeginDown(*link, absl::CancelledError("closed here"));
}

void TcpFabric::BeginDown(Link& link, const absl::Status& cause) {
  link.closing = true;
  link.cause = cause;
  for (auto& ends : link.ends) {
    for (LaneEnd& end : ends) {
      if (end.exists()) BreakEnd(end, Error::kLinkDown);
    }
  }
  leases_.Void(link.id, nullptr);
  std::erase_if(lane_breaks_, [&link](const LaneBreak& b) { return b.link == link.id; });
  ForgetLink(link.id);
  UnwatchControl(link);
  link.stream.Close();
  buffers_came_back_ = true;
  std::erase(want_buffer_, link.id);
  closing_.push_back(&link);
}

bool TcpFabric::AdvanceEnds() {
  bool any = false;
  std::erase_if(lane_breaks_, [&](const LaneBreak& b) {
    if (copies_.Busy(b.link, &b.lane)) return false;
    events_.LaneDown(b.link, b.lane);
    return any = true;
  });
  for (Link* link : closing_) {
    if (link->down_queued || copies_.Busy(link->id, nullptr)) continue;
    link->down_queued = true;
    events_.LinkDown(link->id);
    any = true;
  }
  return any;
}

void TcpFabric::Deliver(EventSink& sink) {
  const auto is_up = [this](LinkId id) {
    const Link* link = Find(id);
    return link != nullptr && !link->closing;
  };
  events_.Deliver(sink, is_up, [this](LinkId id) { return Remove(*Find(id)); });
}

absl::Status TcpFabric::Remove(Link& link) {
  absl::Status cause = std::move(link.cause);
  std::erase(hot_, &link);
  std::erase(backlogged_, &link);
  std::erase(closing_, &link);
  std::erase_if(engaged_, [&link](const LaneEnd* end) { return end->link == &link; });
  links_[static_cast<size_t>(link.id)].reset();
  return cause;
}

}  // namespace verbena::fabric::tcp
