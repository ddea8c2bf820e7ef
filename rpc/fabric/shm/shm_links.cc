// How lanes and links end, and what is reported.
#include <sys/epoll.h>

#include <algorithm>
#include <utility>

#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/shm/shm_fabric.h"

namespace verbena::fabric::shm {

void ShmFabric::TakeResults() {
  for (JobResult& result : inbox_->Take()) {
    if (result.kind == JobResult::Kind::kWithdrawn) {
      Withdraw(result.buffer);
      continue;
    }
    Link* link = Find(result.link);
    if (link == nullptr || link->serial != result.link_serial)
      continue;  // an export of a dead link
    if (result.kind == JobResult::Kind::kExported) {
      if (!link->closing) OnExported(*link, result.buffer, result.status);
      continue;
    }
    if (result.kind == JobResult::Kind::kMadeStages) {
      memory::Block block = result.block == nullptr ? memory::Block() : std::move(*result.block);
      if (!link->closing) stages_.OnMade(*link, std::move(block));
      continue;
    }
    OnTaken(*link, result);
  }
}

void ShmFabric::OnTaken(Link& link, const JobResult& result) {
  const Taken& taken = result.taken;
  link.importing = false;
  // Before what was mapped: that may be of the same buffers, exported anew.
  const auto withdrawn = [&taken](const auto& known) {
    return std::find(taken.withdrawn.begin(), taken.withdrawn.end(), known.buffer) !=
           taken.withdrawn.end();
  };
  std::erase_if(link.imports, withdrawn);
  std::erase_if(link.unmapped, withdrawn);
  link.imports.insert(link.imports.end(), taken.imports.begin(), taken.imports.end());
  if (!taken.not_mapped.ok()) {
    VERBENA_LOG(kWarning, "READs of what a peer exported are off: ", taken.not_mapped.ToString());
  }
  for (const Unmapped& one : taken.unmapped) {
    const bool known =
        std::find(link.unmapped.begin(), link.unmapped.end(), one) != link.unmapped.end();
    if (known) continue;
    // Beyond, what was found first is found out again.
    if (link.unmapped.size() == kExportsMax) link.unmapped.erase(link.unmapped.begin());
    link.unmapped.push_back(one);
  }
  if (link.closing) return;
  if (absl::IsUnavailable(result.status)) {
    link.hung_up = true;  // frames that were sent before are delivered first
    return Heat(link);
  }
  if (!result.status.ok()) return Fail(link, result.status);
  transfers_.OnImports(link, !taken.more);
  if (taken.more || !link.wants.empty() || link.side_news) PostTake(link);
}

void ShmFabric::BreakLane(LinkId id, Lane lane) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) return;
  if (lane.role == LaneRole::kOwner) {
    VoidLeases(*link, &lane);
  } else {
    transfers_.Cancel(*link, &lane, Error::kLaneDown);
  }
  lane_breaks_.push_back({id, lane});
}

void ShmFabric::Close(LinkId id) {
  Link* link = Find(id);
  if (link != nullptr && !link->closing) BeginDown(*link, absl::CancelledError("closed here"));
}

void ShmFabric::Fail(Link& link, const absl::Status& cause) {
  BeginDown(link, cause);
  ending_.push_back(link.id);
}

void ShmFabric::BeginDown(Link& link, const absl::Status& cause) {
  link.closing = true;
  link.closing_ns = SteadyNs();
  link.cause = cause;
  link.mine.control().closed.store(1, std::memory_order_release);
  WakePeer(link);
  for (const PendingLease& p : link.pending_leases) {
    const bool of_stages = p.slot == kStagesSlot;
    if (!of_stages) events_.LeaseRefused(p.slot, Error::kLinkDown);
  }
  link.pending_leases.clear();
  VoidLeases(link, nullptr);
  // The others are void, and known until they are revoked: a stream of the peer's may still read.
  for (LeaseRecord& record : lease_records_) {
    const bool pending = record.state == LeaseRecord::State::kPending;
    if (record.link == link.id && pending) record = LeaseRecord();
  }
  transfers_.Cancel(link, nullptr, Error::kLinkDown);
  std::erase(want_buffer_, link.id);
  std::erase_if(lane_breaks_, [&link](const LaneBreak& b) { return b.link == link.id; });
  closing_.push_back(&link);
}

// A stream of the peer's may still copy from what it leased. The peer has been asked to end its
// side, and begins no more; after that time the link ends by force.
bool ShmFabric::MayEnd(const Link& link) const {
  return !link.down_queued && link.copies == 0 && !link.importing &&
         (link.hung_up || !AnyHeld(link.theirs.desk().holds) || WaitedEnough(link));
}

bool ShmFabric::WaitedEnough(const Link& link) const {
  return SteadyNs() - link.closing_ns >= options_.held_ns;
}

bool ShmFabric::AdvanceEnds() {
  bool any = false;
  std::erase_if(lane_breaks_, [&](const LaneBreak& b) {
    Link* link = Find(b.link);
    if (link == nullptr || transfers_.Copying(*link, b.lane)) return link == nullptr;
    events_.LaneDown(b.link, b.lane);
    return any = true;
  });
  for (Link* link : closing_) {
    if (!MayEnd(*link)) continue;
    link->down_queued = true;
    link->forced = !link->hung_up && AnyHeld(link->theirs.desk().holds);
    if (link->forced) AdvanceRevocations();
    events_.LinkDown(link->id);
    any = true;
  }
  return any;
}

void ShmFabric::Deliver(EventSink& sink) {
  const auto is_up = [this](LinkId id) {
    const Link* link = Find(id);
    return link != nullptr && !link->closing;
  };
  for (const LinkId id : std::exchange(ending_, {})) sink.OnLinkEnding(id, Find(id)->cause);
  events_.Deliver(sink, is_up, [this](LinkId id) { return Remove(*Find(id)); });
}

absl::Status ShmFabric::Remove(Link& link) {
  absl::Status cause = std::move(link.cause);
  std::erase(hot_, &link);
  std::erase(cold_, &link);
  std::erase(closing_, &link);
  std::vector<HeldLease> held = TakeHeld(link);
  std::unique_ptr<Link> owned = std::move(links_[static_cast<size_t>(link.id)]);
  if (held.empty()) {
    Forget(std::move(owned));
    return cause;
  }
  VERBENA_LOG(kWarning, "a stream of a peer's still reads ", held.size(),
              " leases of a link that was closed; their memory is kept until it does not");
  epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, owned->channel->fd(), nullptr);  // the number is used again
  quarantine_.Add(std::move(owned), std::move(held));
  return cause;
}

void ShmFabric::Forget(std::unique_ptr<Link> link) {
  // Unmapping and closing take long.
  options_.post_setup([gone = std::move(link)] {});
}

}  // namespace verbena::fabric::shm
