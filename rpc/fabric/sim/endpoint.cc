#include "rpc/fabric/sim/endpoint.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "rpc/base/check.h"

namespace verbena::fabric::sim {
namespace {

constexpr absl::string_view kBlobPrefix = "sim:";
constexpr int kEventsPerPoll = 64;

uint32_t SlotsOf(const NetworkOptions& options, uint32_t bytes) {
  return (bytes + options.slot_bytes - 1) / options.slot_bytes;
}

std::string LaneBlob(Lane lane) { return absl::StrCat("lane:", lane.index, ":", lane.generation); }

}  // namespace

Endpoint::Endpoint(std::shared_ptr<State> state)
    : state_(std::move(state)), wake_fd_(eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC)) {
  VERBENA_CHECK(wake_fd_ >= 0, "eventfd: errno ", errno);
  const NetworkOptions& o = state_->options;
  traits_.name = "sim";
  traits_.segment_bytes = o.segment_bytes;
  traits_.slot_bytes = o.slot_bytes;
  traits_.window_slots = o.window_slots;
  traits_.publish_bytes = o.publish_bytes;
  traits_.copied_bytes = o.copied_bytes;
  traits_.gathers_sends = o.gathers_sends;
  traits_.read_chunk_bytes = o.read_chunk_bytes;
  traits_.reads_in_flight = o.reads_in_flight;
  traits_.prepares_lanes = o.prepares_lanes;
  traits_.revocation = o.revocation;
  traits_.bounds_enforced = o.bounds_enforced;
  const std::lock_guard lock(state_->mutex);
  state_->endpoints.push_back(this);
}

Endpoint::~Endpoint() {
  const std::lock_guard lock(state_->mutex);
  Die();
  for (const auto& [link, token] : links_) state_->ports.erase(token);
  std::erase(state_->endpoints, this);
  close(wake_fd_);
}

void Endpoint::Die() {
  dead_ = true;
  for (const auto& [link, token] : links_) {
    Port* port = state_->FindPort(token);
    if (port != nullptr) state_->TakeDown(*port, absl::UnavailableError("sim: died"), true);
  }
  queue_.clear();
}

Port* Endpoint::Find(LinkId link) {
  const auto it = links_.find(link);
  return it == links_.end() ? nullptr : state_->FindPort(it->second);
}

absl::StatusOr<Offer> Endpoint::Prepare(LinkId link, Side, absl::string_view) {
  const std::lock_guard lock(state_->mutex);
  if (Find(link) != nullptr) {
    return absl::FailedPreconditionError(
        absl::StrCat("sim: link ", static_cast<uint32_t>(link), " is in use"));
  }
  auto port = std::make_unique<Port>();
  while (port->token == 0 || state_->ports.contains(port->token)) port->token = state_->random();
  port->owner = this;
  port->link = link;
  for (uint32_t i = 0; i < state_->options.send_buffers; ++i) {
    port->buffers.push_back(std::make_unique<std::byte[]>(state_->options.segment_bytes));
    port->free_buffers.push_back(i);
  }
  Offer offer;
  offer.blob = absl::StrCat(kBlobPrefix, port->token);
  links_[link] = port->token;
  state_->ports[port->token] = std::move(port);
  return offer;
}

absl::Status Endpoint::Complete(LinkId link, Offer peer, Sockets&) {
  absl::string_view blob = peer.blob;
  uint64_t token = 0;
  const bool parsed = absl::ConsumePrefix(&blob, kBlobPrefix) && absl::SimpleAtoi(blob, &token);
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  VERBENA_CHECK(port != nullptr, "Complete without Prepare");
  Port* other = parsed ? state_->FindPort(token) : nullptr;
  if (other == nullptr || other == port || (other->peer != 0 && other->peer != port->token)) {
    state_->ports.erase(port->token);
    links_.erase(link);
    return absl::InvalidArgumentError(absl::StrCat("sim: no such offer: ", peer.blob));
  }
  port->peer = token;
  return absl::OkStatus();
}

void Endpoint::Abandon(LinkId link) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr) return;
  state_->TakeDown(*port, absl::CancelledError("sim: abandoned"), true);
  state_->ports.erase(port->token);
  links_.erase(link);
}

absl::StatusOr<Offer> Endpoint::PrepareLane(LinkId link, Lane lane) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr || port->down) return absl::UnavailableError("sim: the link is down");
  if (state_->faults.no_lanes) return absl::ResourceExhaustedError("sim: told to have no lanes");
  LaneEnd& end = port->lanes[{lane.role, lane.index}];
  if (end.up || (end.generation != 0 && lane.generation <= end.generation)) {
    return absl::FailedPreconditionError(absl::StrCat("sim: lane ", lane.index, " has generation ",
                                                      end.generation, ", asked for ",
                                                      lane.generation));
  }
  end = LaneEnd{lane.generation, true, false};
  Offer offer;
  offer.blob = LaneBlob(lane);
  return offer;
}

absl::Status Endpoint::CompleteLane(LinkId link, Lane lane, Offer peer) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr || port->down) return absl::UnavailableError("sim: the link is down");
  LaneEnd& end = port->lanes[{lane.role, lane.index}];
  if (!end.prepared || end.generation != lane.generation) {
    return absl::FailedPreconditionError("sim: the lane was not prepared, or has been broken");
  }
  if (peer.blob != LaneBlob(lane)) {
    return absl::InvalidArgumentError(absl::StrCat("sim: wrong lane offer: ", peer.blob));
  }
  end.up = true;
  return absl::OkStatus();
}

void Endpoint::Start(LinkId link) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  VERBENA_CHECK(port != nullptr && !port->started, "Start comes once, after Complete");
  port->started = true;
  std::deque<Event> held = std::move(port->held);
  for (Event& event : held) state_->Post(*port, std::move(event), state_->now_ns, true);
}

bool Endpoint::AcquireFrame(LinkId link, OutFrame& frame) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr || port->down) return false;
  if (port->free_buffers.empty()) {
    port->wants_sendable = true;
    return false;
  }
  frame.token = port->free_buffers.back();
  port->free_buffers.pop_back();
  frame.data = port->buffers[frame.token].get();
  frame.capacity = state_->options.segment_bytes;
  frame.bytes = 0;
  return true;
}

void Endpoint::Send(LinkId link, absl::Span<const OutFrame> frames) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr) return;
  for (const OutFrame& frame : frames) SendOne(*port, state_->FindPort(port->peer), frame);
}

void Endpoint::SendCopy(LinkId link, const std::byte* frame, uint32_t bytes) {
  const std::lock_guard lock(state_->mutex);
  VERBENA_CHECK(bytes >= 8 && bytes <= traits_.copied_bytes, "a frame of ", bytes, " to copy");
  Port* port = Find(link);
  if (port == nullptr || port->down) return;
  Deliver(*port, state_->FindPort(port->peer), frame, bytes, FrameDue());
}

int64_t Endpoint::FrameDue() {
  ++state_->statistics.frames;
  const int64_t due = state_->now_ns + state_->Delay();
  return state_->Chance(state_->faults.frame_late) ? due + 100 * state_->options.delay_max_ns : due;
}

void Endpoint::SendOne(Port& port, Port* peer, const OutFrame& frame) {
  VERBENA_CHECK(frame.bytes >= 8 && frame.bytes <= frame.capacity, "frame of ", frame.bytes);
  if (port.down) return;
  const int64_t due = FrameDue();
  Event sent;
  sent.kind = Event::Kind::kSendDone;
  sent.lease.index = frame.token;
  state_->Post(port, std::move(sent), due, false);
  Deliver(port, peer, frame.data, frame.bytes, due);
}

void Endpoint::Deliver(Port& port, Port* peer, const std::byte* frame, uint32_t bytes,
                       int64_t due_ns) {
  if (peer == nullptr || peer->down || peer->owner->dead_) return;
  peer->slots_in_flight += SlotsOf(state_->options, bytes);
  if (peer->slots_in_flight > state_->options.window_slots) {
    ++state_->statistics.overruns;
    const absl::Status cause = absl::ResourceExhaustedError(
        absl::StrCat("sim: credits overrun: ", peer->slots_in_flight, " slots in flight, window ",
                     state_->options.window_slots));
    state_->TakeDown(*peer, cause, false);
    state_->TakeDown(port, cause, false);
    return;
  }
  Event arrived;
  arrived.kind = Event::Kind::kFrame;
  arrived.frame.assign(frame, frame + bytes);
  const uint16_t length = static_cast<uint16_t>(bytes);
  memcpy(arrived.frame.data(), &length, sizeof length);
  state_->Post(*peer, std::move(arrived), due_ns, true);
}

void Endpoint::Discard(LinkId link, const OutFrame& frame) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port == nullptr) return;
  port->free_buffers.push_back(frame.token);
  if (!port->wants_sendable || port->down) return;
  port->wants_sendable = false;
  Event event;
  event.kind = Event::Kind::kSendable;
  state_->PostNow(*port, std::move(event));
}

void Endpoint::Lease(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
                     const std::byte* data, size_t bytes) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  VERBENA_CHECK(port != nullptr, "Lease on a link that is down");
  VERBENA_CHECK(data >= region->base() && bytes <= region->bytes() &&
                static_cast<size_t>(data - region->base()) <= region->bytes() - bytes);
  Event leased;
  leased.kind = Event::Kind::kLeased;
  leased.lease = slot;
  if (port->down) {
    leased.error = Error::kLinkDown;
  } else if (!state_->LaneUp(*port, lane)) {
    leased.error = Error::kLaneDown;
  } else if (state_->Chance(state_->faults.lease_refused)) {
    leased.error = Error::kNoMemory;
  } else {
    uint64_t id = state_->random();
    while (id == 0 || state_->leases.contains(id)) ++id;
    const uint64_t nonce = state_->random();
    state_->leases[id] = sim::Lease{nonce, port->token, lane, region, data, bytes};
    port->leases[slot.word()] = id;
    lease_ports_[slot.word()] = port->token;
    leased.key.words = {id, nonce, 0, 0};
  }
  state_->Post(*port, std::move(leased), state_->now_ns + state_->Delay(), true);
}

void Endpoint::EndLease(LeaseSlot slot, bool by_force) {
  const std::lock_guard lock(state_->mutex);
  Event revoked;
  revoked.kind = Event::Kind::kRevoked;
  revoked.lease = slot;
  revoked.by_force = by_force;
  const auto it = lease_ports_.find(slot.word());
  Port* port = it == lease_ports_.end() ? nullptr : state_->FindPort(it->second);
  if (port == nullptr) {  // its link is gone, and the lease with it
    Enqueue(state_->now_ns, std::move(revoked));
    return;
  }
  state_->Post(*port, std::move(revoked), state_->now_ns + state_->Delay(), true);
}

void Endpoint::Read(ReadSlot slot, LinkId link, Lane lane, const RemoteKey& key, uint64_t offset,
                    absl::Span<const LocalPiece> pieces) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  VERBENA_CHECK(port != nullptr, "READ on a link that is down");
  Event done;
  done.kind = Event::Kind::kReadDone;
  done.read = slot;
  PendingRead& read = port->reads[slot.word()];
  read = PendingRead{lane, key, offset, {pieces.begin(), pieces.end()}};
  if (port->down || !state_->LaneUp(*port, lane)) {
    done.error = port->down ? Error::kLinkDown : Error::kLaneDown;
    state_->PostNow(*port, std::move(done));
    return;
  }
  if (state_->Chance(state_->faults.read_lost)) return;
  done.error = state_->faults.read_answer;
  if (state_->Chance(state_->faults.read_breaks_lane)) done.error = Error::kLaneDown;
  state_->Post(*port, std::move(done), state_->now_ns + state_->Delay(), false);
}

void Endpoint::BreakLane(LinkId link, Lane lane) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port != nullptr) state_->BreakLane(*port, lane, Error::kLaneDown);
}

void Endpoint::Close(LinkId link) {
  const std::lock_guard lock(state_->mutex);
  Port* port = Find(link);
  if (port != nullptr) state_->TakeDown(*port, absl::CancelledError("closed here"), true);
}

void Endpoint::Enqueue(int64_t due_ns, Event event) {
  if (dead_) return;
  queue_.emplace(std::pair(due_ns, state_->sequence++), std::move(event));
  if (!armed_) return;
  const uint64_t one = 1;
  // A full counter is as readable as any.
  [[maybe_unused]] const ssize_t n = write(wake_fd_, &one, sizeof one);
}

std::vector<Event> Endpoint::TakeEventsOf(uint64_t port) {
  std::vector<Event> owed;
  for (auto it = queue_.begin(); it != queue_.end();) {
    if (it->second.port != port) {
      ++it;
      continue;
    }
    const Event::Kind kind = it->second.kind;
    if (kind == Event::Kind::kLeased || kind == Event::Kind::kRevoked) {
      owed.push_back(std::move(it->second));
    }
    it = queue_.erase(it);
  }
  return owed;
}

bool Endpoint::Next(Event& event) {
  const std::lock_guard lock(state_->mutex);
  if (dead_) return false;
  auto it = queue_.begin();
  while (it != queue_.end() && it->first.first <= state_->now_ns) {
    const bool held = state_->faults.hold_reads && it->second.kind == Event::Kind::kReadDone &&
                      it->second.error == Error::kOk;
    if (held) {
      ++it;
      continue;
    }
    event = std::move(it->second);
    queue_.erase(it);
    Port* port = state_->FindPort(event.port);
    if (event.port == 0 || (port != nullptr && Apply(*port, event))) return true;
    it = queue_.begin();
  }
  return false;
}

bool Endpoint::Apply(Port& port, Event& event) {
  switch (event.kind) {
    case Event::Kind::kFrame:
      port.slots_in_flight -= SlotsOf(state_->options, static_cast<uint32_t>(event.frame.size()));
      return true;
    case Event::Kind::kSendDone:
      port.free_buffers.push_back(event.lease.index);
      if (!port.wants_sendable) return false;
      port.wants_sendable = false;
      event.kind = Event::Kind::kSendable;
      return true;
    case Event::Kind::kRevoked: {
      const auto it = port.leases.find(event.lease.word());
      if (it == port.leases.end()) return true;
      const auto lease = state_->leases.find(it->second);
      const bool live = lease != state_->leases.end();
      const Lane lane = live ? lease->second.lane : Lane();
      if (live) state_->leases.erase(lease);
      port.leases.erase(it);
      lease_ports_.erase(event.lease.word());
      if (live && event.by_force && state_->options.revocation == Revocation::kLane) {
        state_->BreakLane(port, lane, Error::kLaneDown);
      }
      return true;
    }
    case Event::Kind::kReadDone: {
      const auto it = port.reads.find(event.read.word());
      if (it == port.reads.end()) return false;  // a broken lane has answered for it
      const PendingRead read = std::move(it->second);
      port.reads.erase(it);
      if (port.down) return true;
      if (event.error == Error::kOk) event.error = state_->Execute(port, read);
      const bool refused = event.error == Error::kLeaseLost || event.error == Error::kOutOfBounds;
      if (state_->options.prepares_lanes &&
          (event.error == Error::kLaneDown ||
           (refused && state_->options.refused_read_breaks_lane))) {
        state_->BreakLane(port, read.lane, Error::kLaneDown);
      }
      return true;
    }
    case Event::Kind::kPeerGone:
      state_->TakeDown(port, absl::UnavailableError("sim: the peer is gone"), false);
      return false;
    case Event::Kind::kLinkDown:
      for (const auto& [word, id] : port.leases) lease_ports_.erase(word);
      links_.erase(port.link);
      state_->ports.erase(port.token);
      return true;
    case Event::Kind::kSendable:
    case Event::Kind::kLeased:
    case Event::Kind::kLaneDown:
      return true;
  }
  return false;
}

bool Endpoint::Poll(EventSink& sink) {
  bool pending = false;
  {
    const std::lock_guard lock(state_->mutex);
    state_->now_ns += state_->options.advance_per_poll_ns;
    pending =
        !queue_.empty() && state_->options.advance_per_poll_ns > 0 && !state_->faults.hold_reads;
  }
  Event event;
  int count = 0;
  for (; count < kEventsPerPoll && Next(event); ++count) Deliver(sink, event);
  return count > 0 || pending;
}

void Endpoint::Deliver(EventSink& sink, const Event& event) {
  switch (event.kind) {
    case Event::Kind::kFrame:
      return sink.OnFrame(event.link, event.frame);
    case Event::Kind::kSendable:
      return sink.OnSendable(event.link);
    case Event::Kind::kLeased:
      return sink.OnLeased(event.lease, event.error, event.key);
    case Event::Kind::kRevoked:
      return sink.OnRevoked(event.lease);
    case Event::Kind::kReadDone:
      return sink.OnReadDone(event.read, event.error);
    case Event::Kind::kLaneDown:
      return sink.OnLaneDown(event.link, event.lane, event.error);
    case Event::Kind::kLinkDown:
      return sink.OnLinkDown(event.link, event.status);
    case Event::Kind::kSendDone:
    case Event::Kind::kPeerGone:
      break;
  }
}

bool Endpoint::HasLater() const {
  const std::lock_guard lock(state_->mutex);
  // With a clock that polls move, what is under way needs polls.
  return !queue_.empty() && !dead_;
}

bool Endpoint::Arm() {
  {
    const std::lock_guard lock(state_->mutex);
    armed_ = true;
  }
  return HasLater();
}

void Endpoint::Disarm() {
  const std::lock_guard lock(state_->mutex);
  armed_ = false;
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t n = read(wake_fd_, &count, sizeof count);
}

}  // namespace verbena::fabric::sim
