// What runs on the setup thread: links and lanes before they are used.
#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

// What the user demands, of this port.
PortFilter FilterOf(const PortAddress& port) {
  PortFilter filter = Settings::FromEnvironment().filter;
  filter.device = absl::StrCat(port.device->name(), ":", static_cast<int>(port.port));
  return filter;
}

template <class LaneEnd>
uint32_t GenerationOf(const LaneEnd* end) {
  return end == nullptr ? 0 : end->lane.generation;
}

}  // namespace

void VerbsFabric::PostJob(absl::AnyInvocable<Inbox::News() &&> job) {
  jobs_.fetch_add(1, std::memory_order_relaxed);
  options_.post_setup([this, inbox = inbox_, job = std::move(job)]() mutable {
    inbox->Push(std::move(job)());
    jobs_.fetch_sub(1, std::memory_order_release);
  });
}

QueuePairOptions VerbsFabric::PairOptions() const {
  QueuePairOptions options;
  options.listener = const_cast<VerbsFabric*>(this);
  options.traffic_class = options_.traffic_class;
  options.service_level = options_.service_level;
  return options;
}

// GIDs move, ports go down: what was chosen is looked at again after such an event.
absl::StatusOr<PortAddress> VerbsFabric::PortNow() {
  Device& device = *options_.port.device;
  if (device.dead() || broken_) {
    return absl::UnavailableError(absl::StrCat("verbs: ", device.name(), " has failed"));
  }
  if (port_changed_.exchange(false)) {
    absl::StatusOr<PortAddress> port = ChoosePort(options_.node, FilterOf(options_.port));
    if (!port.ok()) {
      port_changed_ = true;
      return port.status();
    }
    const std::lock_guard lock(setup_mutex_);
    port_ = *std::move(port);
  }
  const std::lock_guard lock(setup_mutex_);
  return port_;
}

// The same port with an address of the peer's kind, where it has one: no other reaches the peer.
absl::StatusOr<PortAddress> VerbsFabric::PortTo(const std::optional<GidBytes>& peer) {
  absl::StatusOr<PortAddress> port = PortNow();
  if (!port.ok() || !peer || port->roce_version != 2) return port;
  GidBytes mine;
  memcpy(mine.data(), port->gid.raw, mine.size());
  if (IsIpv4(mine) == IsIpv4(*peer)) return port;
  PortFilter filter = FilterOf(*port);
  filter.peer_ip = GidText(*peer);
  absl::StatusOr<PortAddress> other = ChoosePort(options_.node, filter);
  return other.ok() ? other : port;
}

absl::StatusOr<OwnedPair> VerbsFabric::MakeControlPair(const std::optional<GidBytes>& peer) {
  absl::StatusOr<PortAddress> port = PortTo(peer);
  if (!port.ok()) return port.status();
  QueuePairOptions options = PairOptions();
  options.port = *std::move(port);
  options.pd = pd_;
  options.cq = control_cq_;
  options.srq = srq_;
  options.send_work = sizes_.control_work;
  options.receive_work = sizes_.receives_per_link;
  options.inline_bytes = sizes_.inline_bytes;
  absl::StatusOr<std::unique_ptr<QueuePair>> pair = QueuePair::Create(options);
  if (!pair.ok()) return pair.status();
  if ((*pair)->inline_bytes() < traits_.copied_bytes) {
    return absl::InternalError(absl::StrCat("verbs: ", options.port.device->name(), " takes ",
                                            (*pair)->inline_bytes(),
                                            " bytes inline, where it took ", traits_.copied_bytes));
  }
  OwnedPair owned;
  owned.pair = *std::move(pair);
  if (srq_ == nullptr) {
    absl::StatusOr<std::vector<uint32_t>> receives =
        receives_->PostTo(owned.pair->handle(), sizes_.receives_per_link);
    if (!receives.ok()) return receives.status();
    owned.receives = *std::move(receives);
  }
  return owned;
}

absl::StatusOr<Offer> VerbsFabric::Prepare(LinkId id, Side, absl::string_view peer_blob) {
  uint32_t links;
  {
    const std::lock_guard lock(setup_mutex_);
    if (setups_.contains(id)) {
      return absl::FailedPreconditionError(
          absl::StrCat("verbs: link ", static_cast<uint32_t>(id), " is in use"));
    }
    links = static_cast<uint32_t>(setups_.size()) + 1;
  }
  if (links > sizes_.links_max) {
    links_refused_.fetch_add(1, std::memory_order_relaxed);
    return absl::ResourceExhaustedError(absl::StrCat("verbs: the limit of ", sizes_.links_max,
                                                     " links of ", options_.port.device->name(),
                                                     " is reached"));
  }
  // The receives are there before the peer can send.
  absl::Status grown = receives_->Grow(links * sizes_.receives_per_link + sizes_.receives_spare);
  if (!grown.ok()) return grown;
  // Where it is no offer, Complete says so.
  const absl::StatusOr<LinkOffer> theirs = ParseLinkOffer(peer_blob);
  std::optional<GidBytes> peer;
  if (theirs.ok()) peer = theirs->end.gid;
  absl::StatusOr<OwnedPair> control = MakeControlPair(peer);
  if (!control.ok()) return control.status();
  LinkOffer blob;
  blob.frame_bytes = traits_.segment_bytes;
  blob.window_frames = traits_.window_slots;
  blob.end = control->pair->local();
  const std::lock_guard lock(setup_mutex_);
  Setup& setup = setups_[id];
  setup.serial = next_serial_++;
  setup.peer = peer;
  setup.gid_text = GidText(blob.end.gid);
  setup.control_number = control->pair->number();
  setup.control = *std::move(control);
  Offer offer;
  offer.blob = LinkOfferBlob(blob);
  return offer;
}

absl::Status VerbsFabric::Complete(LinkId id, Offer peer, Sockets&) {
  absl::StatusOr<LinkOffer> blob = ParseLinkOffer(peer.blob);
  absl::Status status = blob.status();
  if (status.ok() &&
      (blob->frame_bytes != traits_.segment_bytes || blob->window_frames != traits_.window_slots)) {
    status = absl::InvalidArgumentError(absl::StrCat(
        "verbs: the peer's window is ", blob->window_frames, " frames of ", blob->frame_bytes,
        " bytes, ours ", traits_.window_slots, " of ", traits_.segment_bytes));
  }
  QueuePair* control = nullptr;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    VERBENA_CHECK(it != setups_.end() && it->second.control.pair != nullptr,
                  "Complete without Prepare");
    control = it->second.control.pair.get();  // nobody else touches it before Start
    if (status.ok()) it->second.peer = blob->end.gid;
  }
  if (status.ok()) status = control->Connect(blob->end);
  if (!status.ok()) Abandon(id);
  return status;
}

void VerbsFabric::Abandon(LinkId id) {
  OwnedPair control;
  uint32_t number = 0;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    if (it == setups_.end()) return;
    control = std::move(it->second.control);
    number = it->second.control_number;
    setups_.erase(it);
  }
  if (control.pair != nullptr) {
    control.pair->Fail().IgnoreError();
    control.pair.reset();
  }
  if (srq_ == nullptr) receives_->Return(control.receives);
  // What it received before is forgotten; the inbox keeps this ahead of any link that gets its
  // number.
  inbox_->Push([this, number] {
    std::erase_if(early_, [&](const EarlyFrame& early) {
      if (early.qp_number != number) return false;
      if (srq_ != nullptr) receives_->Give(early.received.buffer);
      return true;
    });
  });
}

absl::StatusOr<Offer> VerbsFabric::PrepareLane(LinkId id, Lane lane) {
  if (lane.index >= limits::kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("verbs: lane ", lane.index, " of at most ", limits::kLanesMax));
  }
  std::optional<GidBytes> peer;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    if (it != setups_.end()) peer = it->second.peer;
  }
  absl::StatusOr<PortAddress> port = PortTo(peer);
  if (!port.ok()) return port.status();
  QueuePairOptions options = PairOptions();
  options.port = *std::move(port);
  options.pd = domain_->pd();
  options.cq = bulk_cq_;
  options.send_work = sizes_.bulk_work;
  if (lane.role == LaneRole::kReader) {
    options.sge = sizes_.sge;
    options.read_depth_out = static_cast<uint8_t>(sizes_.read_depth_out);
  } else {
    options.remote_read = true;
    options.read_depth_in = static_cast<uint8_t>(sizes_.read_depth_in);
  }
  absl::StatusOr<std::unique_ptr<QueuePair>> pair = QueuePair::Create(options);
  if (!pair.ok()) return pair.status();
  LaneOffer blob;
  blob.index = lane.index;
  blob.generation = lane.generation;
  blob.end = (*pair)->local();
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  if (it == setups_.end()) return absl::UnavailableError("verbs: the link is down");
  // One of an older generation that was never completed is in nobody's hands.
  std::erase_if(it->second.lanes, [&](const LaneSetup& known) {
    return known.lane.index == lane.index && known.lane.role == lane.role;
  });
  it->second.lanes.push_back(LaneSetup{lane, *std::move(pair)});
  Offer offer;
  offer.blob = LaneOfferBlob(blob);
  return offer;
}

absl::Status VerbsFabric::CompleteLane(LinkId id, Lane lane, Offer peer) {
  absl::StatusOr<LaneOffer> blob = ParseLaneOffer(peer.blob);
  if (!blob.ok()) return blob.status();
  if (blob->index != lane.index || blob->generation != lane.generation) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: an offer of lane ", blob->index,
                                                   " generation ", blob->generation, ", expected ",
                                                   lane.index, " generation ", lane.generation));
  }
  // READs of such a lane would wait for ever, and keep those of other links from being posted.
  const bool reader = lane.role == LaneRole::kReader;
  if ((reader ? blob->end.read_depth_in : blob->end.read_depth_out) == 0) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: an offer of a lane whose end ",
                                                   reader ? "answers" : "has", " 0 READs"));
  }
  std::unique_ptr<QueuePair> pair;
  uint64_t serial = 0;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    if (it == setups_.end()) return absl::UnavailableError("verbs: the link is down");
    serial = it->second.serial;
    auto& lanes = it->second.lanes;
    const auto known = std::find_if(lanes.begin(), lanes.end(),
                                    [&](const LaneSetup& l) { return l.lane == lane; });
    if (known == lanes.end()) {
      return absl::FailedPreconditionError("verbs: the lane was not prepared");
    }
    pair = std::move(known->pair);
    lanes.erase(known);
  }
  absl::Status status = pair->Connect(blob->end);
  if (!status.ok()) return status;
  inbox_->Push([this, id, serial, lane, pair = std::move(pair)]() mutable {
    AdoptLane(id, serial, lane, std::move(pair));
  });
  return status;
}

// A predecessor that nobody broke would be in nobody's hands: a peer that offers one after the
// other would gather queue pairs here.
template <class LaneEnd>
void VerbsFabric::Replace(LaneEnd*& newest, LaneEnd* by) {
  if (newest != nullptr && newest->up()) FailEnd(*newest);
  newest = by;
}

void VerbsFabric::AdoptLane(LinkId id, uint64_t serial, Lane lane,
                            std::unique_ptr<QueuePair> pair) {
  OwnedPair owned;
  owned.pair = std::move(pair);
  Link* const link = Find(id);
  if (link == nullptr || link->serial != serial || link->closing) {
    return DestroyLater(std::move(owned));
  }
  const uint32_t newest = lane.role == LaneRole::kReader ? GenerationOf(link->readers[lane.index])
                                                         : GenerationOf(link->owners[lane.index]);
  if (lane.generation <= newest) return DestroyLater(std::move(owned));
  if (lane.role == LaneRole::kReader) {
    auto end = std::make_unique<ReaderEnd>(id, lane, std::move(owned), sizes_.bulk_work);
    Replace(link->readers[lane.index], end.get());
    AddEnd(*link, std::move(end));
  } else {
    auto end = std::make_unique<OwnerEnd>(id, lane, std::move(owned), sizes_.bulk_work);
    Replace(link->owners[lane.index], end.get());
    AddEnd(*link, std::move(end));
  }
}

// One that never posted anything.
void VerbsFabric::DestroyLater(OwnedPair owned) {
  PostJob([pair = std::move(owned.pair)]() mutable -> Inbox::News {
    pair->Fail().IgnoreError();
    pair.reset();
    return [] {};
  });
}

void VerbsFabric::ForgetSetup(LinkId id) {
  std::vector<LaneSetup> lanes;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    if (it == setups_.end()) return;
    lanes = std::move(it->second.lanes);
    setups_.erase(it);
  }
  for (LaneSetup& lane : lanes) {
    OwnedPair owned;
    owned.pair = std::move(lane.pair);
    DestroyLater(std::move(owned));
  }
}

std::string VerbsFabric::ReadWays(LinkId id) const {
  const std::lock_guard lock(setup_mutex_);
  const auto it = setups_.find(id);
  return absl::StrCat("RDMA READ over ", port_.device->name(), ", ",
                      it == setups_.end() ? port_.gid_text : it->second.gid_text);
}

}  // namespace verbena::fabric::verbs
