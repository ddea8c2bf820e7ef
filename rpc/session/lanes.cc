#include "rpc/session/lanes.h"

#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/base/log.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

namespace {

using Prepared = absl::StatusOr<fabric::Offer>;

// `job` on the setup thread; `then` with what it returned, if the link is still up.
void OnSetupThread(LinkImpl& link, absl::AnyInvocable<Prepared()> job,
                   absl::AnyInvocable<void(LinkImpl&, Prepared)> then) {
  auto prepared = std::make_shared<Prepared>(absl::UnknownError("not run"));
  link.engine_impl().OnSetupThread(
      link, [prepared, job = std::move(job)]() mutable { *prepared = job(); },
      [&link, prepared, then = std::move(then)]() mutable {
        if (link.up()) then(link, std::move(*prepared));
      });
}

}  // namespace

Lanes::Lanes(LinkImpl& link) : link_(link) {
  if (!traits().prepares_lanes) owner_.state = reader_.state = State::kUp;
}

fabric::Traits const& Lanes::traits() const { return link_.fabric().traits(); }

bool Lanes::WantOwnerLane() {
  if (owner_.state == State::kNone) PrepareOwner();
  if (owner_.state == State::kFailed) {
    if (!MayTryAgain(owner_)) {
      link_.engine_impl().LaneFailedLater(link_);
    } else if (traits().prepares_lanes) {
      // What was leased on it, and the peer knows, is leased again on its successor.
      link_.groups.ForEach([](LeaseGroup& group) { group.OnLaneDown(); });
      PrepareOwner();
    } else {
      owner_.state = State::kUp;
    }
  }
  return owner_.state == State::kUp;
}

bool Lanes::ReaderFailed() {
  if (reader_.state != State::kFailed) return false;
  // Where lanes are prepared, the owner offers the next.
  if (traits().prepares_lanes || !MayTryAgain(reader_)) return true;
  reader_.state = State::kUp;
  return false;
}

bool Lanes::MayTryAgain(const End& end) const {
  return link_.engine_impl().now_ns() - end.failed_ns > limits::kLaneRebuildWindowNs;
}

void Lanes::PrepareOwner() {
  owner_.state = State::kPreparing;
  ++owner_.generation;
  fabric::Fabric* const fabric = &link_.fabric();
  const LinkId id = link_.id();
  const Lane lane = LaneOf(owner_);
  OnSetupThread(
      link_, [fabric, id, lane] { return fabric->PrepareLane(id, lane); },
      [lane](LinkImpl& link, absl::StatusOr<fabric::Offer> offer) {
        link.lanes().OnOwnerPrepared(lane.generation, std::move(offer));
      });
}

void Lanes::OnOwnerPrepared(uint32_t generation, absl::StatusOr<fabric::Offer> offer) {
  if (owner_.state != State::kPreparing || owner_.generation != generation) return;
  if (!offer.ok()) {
    VERBENA_LOG(kWarning, "link to ", link_.info().peer,
                ": no bulk lane: ", offer.status().ToString());
    --owner_.generation;  // the peer never heard of it
    Fail(owner_);
    return;
  }
  owner_.state = State::kOffered;
  Send(wire::RecordType::kLaneOffer, owner_, 0, offer->blob);
}

absl::Status Lanes::OnOffer(const wire::LaneRecord& record) {
  if (!record.sender_owns || record.generation != reader_.generation + 1) {
    return absl::InvalidArgumentError(absl::StrCat("LANE_OFFER of generation ", record.generation,
                                                   " after ", reader_.generation));
  }
  if (!Count(reader_.offered_ns, limits::kLaneOffersMax)) {
    return absl::ResourceExhaustedError(absl::StrCat("LANE_OFFER of generation ", record.generation,
                                                     "; the limit is ", limits::kLaneOffersMax,
                                                     " in 10 s (kLaneOffersMax)"));
  }
  if (reader_.state == State::kUp || reader_.state == State::kBreaking) {
    // The owner saw it break first; our end's READs are answered before its successor is used.
    if (reader_.state == State::kUp) link_.fabric().BreakLane(link_.id(), LaneOf(reader_));
  }
  link_.transfers().OnLaneGone();
  reader_.state = State::kPreparing;
  reader_.generation = record.generation;
  fabric::Fabric* const fabric = &link_.fabric();
  const LinkId id = link_.id();
  const Lane lane = LaneOf(reader_);
  fabric::Offer peer;
  peer.blob = std::string(record.blob);
  OnSetupThread(
      link_,
      [fabric, id, lane, offer = std::move(peer)]() mutable -> absl::StatusOr<fabric::Offer> {
        absl::StatusOr<fabric::Offer> mine = fabric->PrepareLane(id, lane);
        if (!mine.ok()) return mine;
        absl::Status completed = fabric->CompleteLane(id, lane, std::move(offer));
        if (!completed.ok()) return completed;
        return mine;
      },
      [lane](LinkImpl& link, absl::StatusOr<fabric::Offer> offer) {
        link.lanes().OnReaderPrepared(lane.generation, std::move(offer));
      });
  return absl::OkStatus();
}

void Lanes::OnReaderPrepared(uint32_t generation, absl::StatusOr<fabric::Offer> offer) {
  if (reader_.state != State::kPreparing || reader_.generation != generation) return;
  if (!offer.ok()) {
    VERBENA_LOG(kWarning, "link to ", link_.info().peer,
                ": no bulk lane: ", offer.status().ToString());
    Send(wire::RecordType::kLaneDown, reader_, static_cast<uint32_t>(Error::kUnsupported), {});
    Fail(reader_);
    return;
  }
  reader_.state = State::kUp;
  Send(wire::RecordType::kLaneReady, reader_, 0, offer->blob);
  link_.transfers().Pump();
}

absl::Status Lanes::OnReady(const wire::LaneRecord& record) {
  if (record.sender_owns) return absl::InvalidArgumentError("LANE_READY from the owner's end");
  if (owner_.state != State::kOffered || owner_.generation != record.generation)
    return absl::OkStatus();  // of an older one, or said before
  owner_.state = State::kCompleting;
  fabric::Fabric* const fabric = &link_.fabric();
  const LinkId id = link_.id();
  const Lane lane = LaneOf(owner_);
  fabric::Offer peer;
  peer.blob = std::string(record.blob);
  OnSetupThread(
      link_,
      [fabric, id, lane, offer = std::move(peer)]() mutable -> absl::StatusOr<fabric::Offer> {
        absl::Status completed = fabric->CompleteLane(id, lane, std::move(offer));
        if (!completed.ok()) return completed;
        return fabric::Offer{};
      },
      [lane](LinkImpl& link, absl::StatusOr<fabric::Offer> offer) {
        link.lanes().OnOwnerCompleted(lane.generation, offer.status());
      });
  return absl::OkStatus();
}

void Lanes::OnOwnerCompleted(uint32_t generation, const absl::Status& status) {
  if (owner_.state != State::kCompleting || owner_.generation != generation) return;
  if (!status.ok()) {
    VERBENA_LOG(kWarning, "link to ", link_.info().peer, ": no bulk lane: ", status.ToString());
    Send(wire::RecordType::kLaneDown, owner_, static_cast<uint32_t>(Error::kUnsupported), {});
    Fail(owner_);
    return;
  }
  owner_.state = State::kUp;
  link_.groups.ForEach([](LeaseGroup& group) { group.OnLaneUp(); });
}

absl::Status Lanes::OnRecord(wire::RecordType type, const wire::LaneRecord& record) {
  if (!traits().prepares_lanes || record.index != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a lane record for lane ", record.index, " on ", traits().name));
  }
  if (type == wire::RecordType::kLaneOffer) return OnOffer(record);
  if (type == wire::RecordType::kLaneReady) return OnReady(record);
  OnDownRecord(record);
  return absl::OkStatus();
}

// The peer's end is down: ours is broken too, if it is of that generation.
void Lanes::OnDownRecord(const wire::LaneRecord& record) {
  End& end = EndOf(record.sender_owns ? LaneRole::kReader : LaneRole::kOwner);
  if (end.generation != record.generation) return;
  if (static_cast<Error>(record.cause) == Error::kUnsupported) {
    const bool up = end.state == State::kUp;
    Fail(end);
    if (up) link_.fabric().BreakLane(link_.id(), LaneOf(end));
  } else if (end.state == State::kUp) {
    end.state = State::kBreaking;
    link_.fabric().BreakLane(link_.id(), LaneOf(end));
  } else if (end.state == State::kOffered || end.state == State::kCompleting) {
    OnFabricLaneDown(LaneOf(end), Error::kLaneDown);
  }
}

void Lanes::BreakReaderLane() {
  if (reader_.state != State::kUp) return;
  if (traits().prepares_lanes) reader_.state = State::kBreaking;
  link_.fabric().BreakLane(link_.id(), LaneOf(reader_));
}

void Lanes::OnFabricLaneDown(Lane lane, Error cause) {
  End& end = EndOf(lane.role);
  if (lane.index != 0 || lane.generation != end.generation || !link_.up()) return;
  if (end.state == State::kFailed || end.state == State::kDown) return;
  if (!Count(end.broken_ns, limits::kLaneRebuildsMax)) {
    if (traits().prepares_lanes)
      Send(wire::RecordType::kLaneDown, end, static_cast<uint32_t>(Error::kUnsupported), {});
    VERBENA_LOG(kWarning, "link to ", link_.info().peer, ": a bulk lane broke ",
                limits::kLaneRebuildsMax + 1, " times in 10 s and stays down for as long");
    Fail(end);
    return;
  }
  if (!traits().prepares_lanes) {  // its successor is there already, under the same name
    link_.transfers().Pump();
    return;
  }
  end.state = State::kDown;
  Send(wire::RecordType::kLaneDown, end, static_cast<uint32_t>(cause), {});
  if (end.role != LaneRole::kOwner) {  // the owner offers the next
    link_.transfers().OnLaneGone();
    return;
  }
  link_.groups.ForEach([](LeaseGroup& group) { group.OnLaneDown(); });
  PrepareOwner();
}

bool Lanes::Count(std::deque<int64_t>& times_ns, size_t times_max) {
  const int64_t now_ns = link_.engine_impl().now_ns();
  while (!times_ns.empty() && now_ns - times_ns.front() > limits::kLaneRebuildWindowNs) {
    times_ns.pop_front();
  }
  if (times_ns.size() >= times_max) return false;
  times_ns.push_back(now_ns);
  return true;
}

void Lanes::Fail(End& end) {
  if (end.state == State::kFailed) return;
  end.state = State::kFailed;
  end.failed_ns = link_.engine_impl().now_ns();
  if (end.role == LaneRole::kReader) {
    link_.transfers().FailAll(absl::UnavailableError("the bulk lane stays down"));
  } else {
    link_.engine_impl().LaneFailedLater(link_);
  }
}

void Lanes::Send(wire::RecordType type, const End& end, uint32_t cause, absl::string_view blob) {
  const wire::LaneRecord record{0, end.role == LaneRole::kOwner, end.generation, cause, blob};
  std::vector<std::byte> bytes(wire::LaneRecordBytes(record));
  wire::WriteLane(type, record, bytes.data());
  link_.SendControl(bytes);
}

}  // namespace verbena::session
