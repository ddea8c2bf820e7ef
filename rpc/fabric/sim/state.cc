#include "rpc/fabric/sim/state.h"

#include <algorithm>

#include "rpc/base/check.h"
#include "rpc/fabric/sim/endpoint.h"

namespace verbena::fabric::sim {

Port* State::FindPort(uint64_t token) {
  const auto it = ports.find(token);
  return it == ports.end() ? nullptr : it->second.get();
}

int64_t State::Delay() {
  return std::uniform_int_distribution<int64_t>(options.delay_min_ns, options.delay_max_ns)(random);
}

bool State::Chance(double probability) {
  return probability > 0 && std::uniform_real_distribution<double>(0, 1)(random) < probability;
}

void State::Post(Port& port, Event event, int64_t due_ns, bool ordered) {
  event.port = port.token;
  event.link = port.link;
  if (!port.started) {
    port.held.push_back(std::move(event));
    return;
  }
  if (ordered) {
    due_ns = std::max(due_ns, port.last_due_ns);
    port.last_due_ns = due_ns;
  }
  port.owner->Enqueue(due_ns, std::move(event));
}

void State::PostNow(Port& port, Event event) { Post(port, std::move(event), now_ns, false); }

void State::TakeDown(Port& port, const absl::Status& cause, bool tell_peer) {
  if (port.down) return;
  port.down = true;
  // What is owed is answered first; frames under way are lost.
  for (Event& event : port.owner->TakeEventsOf(port.token)) {
    if (event.kind == Event::Kind::kReadDone) continue;  // answered from `reads` below
    if (event.kind == Event::Kind::kLeased) event.error = Error::kLinkDown;
    PostNow(port, std::move(event));
  }
  for (const auto& [word, read] : port.reads) {
    Event done;
    done.kind = Event::Kind::kReadDone;
    done.read = ReadSlot::FromWord(word);
    done.error = Error::kLinkDown;
    PostNow(port, std::move(done));
  }
  for (const auto& [word, id] : port.leases) leases.erase(id);
  Event down;
  down.kind = Event::Kind::kLinkDown;
  down.status = cause;
  PostNow(port, std::move(down));
  Port* peer = FindPort(port.peer);
  if (!tell_peer || peer == nullptr || peer->down) return;
  Event gone;
  gone.kind = Event::Kind::kPeerGone;
  Post(*peer, std::move(gone), now_ns + Delay(), true);
}

bool State::LaneUp(const Port& port, Lane lane) const {
  if (!options.prepares_lanes) return lane.index == 0;
  const auto it = port.lanes.find({lane.role, lane.index});
  return it != port.lanes.end() && it->second.up && it->second.generation == lane.generation;
}

void State::BreakLane(Port& port, Lane lane, Error cause) {
  if (port.down) return;
  if (options.prepares_lanes) {
    const auto it = port.lanes.find({lane.role, lane.index});
    if (it == port.lanes.end() || it->second.generation != lane.generation) return;
    if (!it->second.up && !it->second.prepared) return;  // broken before
    it->second.up = it->second.prepared = false;
  }
  ++statistics.lanes_broken;
  for (auto& [word, read] : port.reads) {
    if (!(read.lane == lane) || read.flushed) continue;
    read.flushed = true;
    Event done;
    done.kind = Event::Kind::kReadDone;
    done.read = ReadSlot::FromWord(word);
    done.error = Error::kLaneDown;
    PostNow(port, std::move(done));
  }
  if (lane.role == LaneRole::kOwner) {
    for (auto it = leases.begin(); it != leases.end();) {
      const bool void_now = it->second.owner == port.token && it->second.lane == lane;
      it = void_now ? leases.erase(it) : std::next(it);
    }
  }
  Event down;
  down.kind = Event::Kind::kLaneDown;
  down.lane = lane;
  down.error = cause;
  PostNow(port, std::move(down));
}

Error State::Check(const Port& port, const PendingRead& read, const Lease** lease) const {
  const auto it = leases.find(read.key.words[0]);
  if (it == leases.end() || it->second.nonce != read.key.words[1]) return Error::kLeaseLost;
  *lease = &it->second;
  if ((*lease)->owner != port.peer) return Error::kLeaseLost;
  if ((*lease)->lane.index != read.lane.index) return Error::kLeaseLost;
  size_t total = 0;
  for (const LocalPiece& piece : read.pieces) total += piece.bytes;
  const size_t bytes = (*lease)->bytes;
  if (read.offset > bytes || total > bytes - read.offset) return Error::kOutOfBounds;
  return Error::kOk;
}

Error State::Execute(Port& port, const PendingRead& read) {
  if (read.flushed) return Error::kLaneDown;
  ++statistics.reads;
  Port* owner = FindPort(port.peer);
  if (owner == nullptr || owner->down) return Error::kLaneDown;
  const Lane far{read.lane.index, LaneRole::kOwner, read.lane.generation};
  if (!LaneUp(port, read.lane) || !LaneUp(*owner, far)) return Error::kLaneDown;
  const Lease* lease = nullptr;
  if (const Error error = Check(port, read, &lease); error != Error::kOk) {
    ++statistics.reads_refused;
    return error;
  }
  const std::byte* from = lease->data + read.offset;
  memory::Device& source = lease->region->device();
  for (const LocalPiece& piece : read.pieces) {
    // Whichever device is not the host's knows how to reach both.
    memory::Device* device = source.host_accessible() ? piece.device : &source;
    std::unique_ptr<memory::CopyEngine>& engine = engines_[device];
    if (engine == nullptr) engine = device->MakeCopyEngine();
    const memory::CopyPiece copy{piece.data, from, piece.bytes};
    from += piece.bytes;
    VERBENA_CHECK(engine->Copy(1, {&copy, 1}, {}), "the simulation copies one at a time");
    bool fault = false;
    auto done = [&fault](uint64_t, bool ok) { fault |= !ok; };
    while (engine->Poll(
        SIZE_MAX, [] { return false; }, done)) {
    }
    if (fault) return Error::kFault;
  }
  return Error::kOk;
}

}  // namespace verbena::fabric::sim
