#include "rpc/session/leases.h"

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/wire/control.h"

namespace verbena::session {

LeaseGroup::~LeaseGroup() {
  VERBENA_DCHECK(live_ == 0 || !started_, "a group dies with ", live_, " leases");
  if (notify_queued || (started_ && !awaited_.empty())) link_.engine_impl().Forget(*this);
  if (started_) return;
  for (const LeaseSlot slot : slots_) link_.engine_impl().leases().Remove(slot);
}

void LeaseGroup::Add(const memory::RegionRef& region, const std::byte* data, uint64_t bytes,
                     uint32_t piece, uint32_t pieces) {
  VERBENA_DCHECK(!started_);
  const LeaseSlot slot = link_.engine_impl().leases().Add();
  if (slot.index == LeaseSlot{}.index) {
    error_ = Error::kNoMemory;
    return;
  }
  Lease& lease = *Find(slot);
  lease.first = static_cast<uint32_t>(slots_.size()) - piece;
  lease.pieces = pieces;
  slots_.push_back(slot);
  lease.group = this;
  lease.region = region;
  lease.data = data;
  lease.bytes = bytes;
  bytes_ += bytes;
}

void LeaseGroup::Await(const memory::ReadinessRef& after) {
  VERBENA_DCHECK(!started_);
  if (!after->ready()) awaited_.push_back(after);
}

bool LeaseGroup::PollReady(bool ask) {
  absl::Status failed;
  if (ask) {
    for (const memory::ReadinessRef& after : awaited_) failed.Update(after->Look());
  }
  std::erase_if(awaited_, [](const memory::ReadinessRef& after) { return after->ready(); });
  if (awaited_.empty()) {
    --pending_;
    if (!ending_ && link_.lanes().owner_up()) OnLaneUp();  // what Post left
    if (pending_ == 0 && !ending_) link_.engine_impl().NotifyLater(*this);
    return true;
  }
  if (ending_ || failed.ok()) return ending_;
  awaited_.clear();
  if (error_ == Error::kOk) error_ = Error::kFault;
  End();
  return true;
}

void LeaseGroup::SetAnnounced() {
  announced_ = true;
  link_.engine_impl().ExpectRelease(bytes_);
}

bool LeaseGroup::Start() {
  if (error_ != Error::kOk) return false;
  started_ = true;
  live_ = pending_ = slots_.size();
  if (!awaited_.empty()) {
    ++pending_;
    link_.engine_impl().AwaitReady(*this);
  }
  link_.announced_bytes += bytes_;
  link_.engine_impl().CountLeases(static_cast<int64_t>(live_));
  link_.groups.PushBack(*this);
  if (!link_.lanes().WantOwnerLane()) return true;
  for (const LeaseSlot slot : slots_) Post(slot, *Find(slot));
  return true;
}

Lease* LeaseGroup::Find(LeaseSlot slot) const { return link_.engine_impl().leases().Find(slot); }

const fabric::RemoteKey& LeaseGroup::key(size_t index) const { return Find(slots_[index])->key; }

void LeaseGroup::Post(LeaseSlot slot, Lease& lease) {
  VERBENA_DCHECK(lease.state == LeaseState::kIdle);
  // It may be copied when it is leased.
  const bool device = !lease.region->device().host_accessible();
  if (device && !awaited_.empty() && link_.fabric().traits().prepares_lanes) return;
  lease.state = LeaseState::kLeasing;
  lease.generation = link_.lanes().owner_lane().generation;
  link_.fabric().Lease(slot, link_.id(), link_.lanes().owner_lane(), lease.region, lease.data,
                       lease.bytes);
}

void LeaseGroup::Ask(int64_t now_ns, int64_t grace_ns) {
  if (live_ == 0 || ending_ || force_due_ns_ != 0) return;
  force_due_ns_ = now_ns + grace_ns;
  link_.DueAt(force_due_ns_);
}

void LeaseGroup::EndAll(bool by_force) {
  if (!started_ || ending_) return;
  ending_ = true;
  for (const LeaseSlot slot : slots_) {
    Lease* const lease = Find(slot);
    if (lease != nullptr) EndLease(slot, *lease, by_force);
  }
}

void LeaseGroup::EndOne(LeaseSlot slot) {
  Lease* const lease = Find(slot);
  if (lease != nullptr && lease->group == this) EndLease(slot, *lease, false);
}

void LeaseGroup::EndLease(LeaseSlot slot, Lease& lease, bool by_force) {
  if (lease.ending) return;
  lease.ending = true;
  if (lease.state == LeaseState::kIdle) {
    Finish(slot, lease);
  } else if (lease.state == LeaseState::kLive && link_.up()) {  // else at the link's end
    lease.state = LeaseState::kRevoking;
    if (by_force) {
      link_.fabric().Revoke(slot);
    } else {
      link_.fabric().Release(slot);
    }
  }  // kLeasing, kRevoking: at its event
}

void LeaseGroup::Finish(LeaseSlot slot, Lease& lease) {
  VERBENA_DCHECK(live_ > 0);
  link_.announced_bytes -= lease.bytes;
  link_.engine_impl().CountLeases(-1);
  link_.engine_impl().leases().Remove(slot);
  if (--live_ == 0) {
    Unlink();
    link_.engine_impl().NotifyLater(*this);
  }
}

void LeaseGroup::OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key) {
  Lease& lease = *Find(slot);
  if (lease.state != LeaseState::kLeasing) return;
  if (error == Error::kLaneDown && !lease.ending) {
    lease.state = LeaseState::kIdle;  // made again when the lane is, or at once if that was quicker
    if (link_.lanes().owner_up() && lease.generation != link_.lanes().owner_lane().generation) {
      Post(slot, lease);
    }
    return;
  }
  if (error != Error::kOk) {
    if (error_ == Error::kOk) error_ = error;
    lease.ending = true;
    // The peer may wait for new keys.
    if (announced_) SendRecall();
    Finish(slot, lease);
    EndAll(announced_);
    return;
  }
  lease.state = LeaseState::kLive;
  lease.key = key;
  const bool lane_is_there =
      link_.lanes().owner_up() && lease.generation == link_.lanes().owner_lane().generation;
  if (lease.ending || !lane_is_there) {
    if (!link_.up()) return;
    lease.state = LeaseState::kRevoking;
    link_.fabric().Release(slot);  // nobody was told of this key
    return;
  }
  --pending_;
  if (announced_) {
    SendKeys(lease);
  } else if (pending_ == 0) {
    link_.engine_impl().NotifyLater(*this);
  }
}

void LeaseGroup::SendKeys(const Lease& lease) {
  wire::LeaseKeys keys;
  keys.lane = link_.lanes().owner_lane().index;
  keys.generation = link_.lanes().owner_lane().generation;
  const uint64_t name = slots_[lease.first].word();
  for (uint32_t i = lease.first; i < lease.first + lease.pieces; ++i) {
    const Lease* const piece = Find(slots_[i]);
    const bool there = piece != nullptr && piece->state == LeaseState::kLive && !piece->ending &&
                       piece->generation == keys.generation;
    if (!there) return;  // the last to come sends them
    keys.keys.push_back({name, piece->key.words});
  }
  std::vector<std::byte> record(wire::LeaseKeysBytes(lease.pieces));
  wire::WriteLeaseKeys(keys, record.data());
  link_.SendControl(record);
}

// While the peer READs a message's table it knows the lease of that alone, which is the last;
// afterwards it knows the others.
void LeaseGroup::SendRecall() {
  int named = 0;
  for (size_t i = slots_.size(); i-- > 0 && named < 2;) {
    const Lease* const lease = Find(slots_[i]);
    if (lease == nullptr) continue;
    i = lease->first;
    link_.SendLeaseRecord(wire::RecordType::kRecall, slots_[i].word(), true);
    ++named;
  }
}

void LeaseGroup::OnRevoked(LeaseSlot slot) {
  Lease& lease = *Find(slot);
  if (lease.state != LeaseState::kRevoking) return;
  lease.state = LeaseState::kIdle;
  if (lease.ending) {
    Finish(slot, lease);
  } else if (link_.up() && link_.lanes().owner_up()) {
    Post(slot, lease);
  }
}

void LeaseGroup::OnLaneUp() {
  for (const LeaseSlot slot : slots_) {
    Lease* const lease = Find(slot);
    if (lease != nullptr && lease->state == LeaseState::kIdle) Post(slot, *lease);
  }
}

void LeaseGroup::OnLaneDown() {
  for (const LeaseSlot slot : slots_) {
    Lease* const lease = Find(slot);
    if (lease == nullptr || lease->state != LeaseState::kLive) continue;
    ++pending_;
    lease->state = LeaseState::kRevoking;
    link_.fabric().Revoke(slot);
  }
}

void LeaseGroup::OnLaneFailed() {
  if (error_ == Error::kOk) error_ = Error::kLaneDown;
  if (!announced_) End();
}

void LeaseGroup::OnLinkDown() {
  ending_ = true;
  for (const LeaseSlot slot : slots_) {
    Lease* const lease = Find(slot);
    if (lease != nullptr) Finish(slot, *lease);
  }
}

void LeaseGroup::SetAgeMax(int64_t due_ns) {
  age_due_ns_ = due_ns;
  link_.DueAt(due_ns);
}

void LeaseGroup::Expire(int64_t now_ns) {
  if (force_due_ns_ != 0 && !ending_) {
    if (now_ns - force_due_ns_ >= 0) {
      link_.engine_impl().CountForced(live_);
      EndAll(true);
    } else {
      link_.DueAt(force_due_ns_);
    }
    return;
  }
  if (age_due_ns_ == 0 || ending_) return;
  if (now_ns - age_due_ns_ < 0) {
    link_.DueAt(age_due_ns_);
    return;
  }
  age_due_ns_ = 0;
  if (announced_) SendRecall();
  Ask(now_ns, link_.engine_impl().revoke_grace_ns());
}

void LeaseGroup::Notify() {
  if (live_ == 0) {
    holder_.OnLeasesEnded();
  } else if (usable() && told_leased_) {
    link_.OnBudget();  // on a new lane, and its message has not left yet
  } else if (usable()) {
    told_leased_ = true;
    holder_.OnLeased();
  }
}

absl::Status WhyNotLeased(Error error, absl::string_view what) {
  switch (error) {
    case Error::kLaneDown:
      return absl::UnavailableError("the bulk lane stays down");
    case Error::kLinkDown:
      return absl::UnavailableError(absl::StrCat("the peer is gone, nobody can READ ", what));
    case Error::kFault:
      return absl::AbortedError(absl::StrCat("the device failed before it had written ", what));
    case Error::kUnsupported:
      return absl::FailedPreconditionError(
          absl::StrCat("this transport does not reach the memory of ", what));
    default:
      return absl::ResourceExhaustedError(
          absl::StrCat("the transport cannot lease ", what, "; the log of their process says why"));
  }
}

}  // namespace verbena::session
