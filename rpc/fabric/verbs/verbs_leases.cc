// Leases that this end owns, on each of the three rungs: a window bound to the lane's queue pair, a
// registration for each lease, or the lane's own end.
#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

// Slots of a session's table; higher indexes are a bug of the caller's.
constexpr uint32_t kLeaseSlotsMax = 1 << 22;
// mlx5 binds no window larger than this; what is larger gets a registration of its own.
constexpr uint64_t kWindowBytesMax = uint64_t{2} << 30;
// Windows are allocated so many at a time.
constexpr size_t kWindowBatch = 64;

}  // namespace

VerbsFabric::LeaseRecord& VerbsFabric::RecordOf(LeaseSlot slot) {
  VERBENA_CHECK(slot.index < kLeaseSlotsMax, "lease slot ", slot.index);
  if (slot.index >= leases_.size()) leases_.resize(slot.index + 1);
  return leases_[slot.index];
}

// Null: it is not there any more.
VerbsFabric::LeaseRecord* VerbsFabric::RecordIf(LeaseSlot slot) {
  if (slot.index >= leases_.size()) return nullptr;
  LeaseRecord& record = leases_[slot.index];
  const bool is = record.state != LeaseState::kNone && record.generation == slot.generation;
  return is ? &record : nullptr;
}

OwnerEnd* VerbsFabric::UpOwner(LinkId id, Lane lane) {
  for (const bool again : {false, true}) {
    if (again && !TakeNews()) return nullptr;  // the lane may have been completed just now
    const Link* const link = Find(id);
    if (link == nullptr || lane.index >= limits::kLanesMax) return nullptr;
    OwnerEnd* const end = link->owners[lane.index];
    if (end != nullptr && end->lane == lane) return end->up() ? end : nullptr;
  }
  return nullptr;
}

void VerbsFabric::Lease(LeaseSlot slot, LinkId id, Lane lane, const memory::RegionRef& region,
                        const std::byte* data, size_t bytes) {
  VERBENA_CHECK(data >= region->base() && bytes <= region->bytes() &&
                static_cast<size_t>(data - region->base()) <= region->bytes() - bytes);
  Link* const link = Find(id);
  if (link == nullptr || link->closing) return events_.LeaseRefused(slot, Error::kLinkDown);
  OwnerEnd* const end = UpOwner(id, lane);
  if (end == nullptr) return events_.LeaseRefused(slot, Error::kLaneDown);
  LeaseRecord& record = RecordOf(slot);
  // What a link that is down left behind holds nothing.
  VERBENA_CHECK(record.state == LeaseState::kNone || record.state == LeaseState::kVoid,
                "lease slot ", slot.index, " is in use");
  record = LeaseRecord();
  record.generation = slot.generation;
  record.end = end->number;
  record.link = id;
  record.data = data;
  record.bytes = bytes;
  memory::Device& device = region->device();
  if (!device.host_accessible()) {
    if (options_.gpu_direct && domain_->MayReach(device, false)) {
      return RegisterLease(slot, record, *link, region);
    }
    return CopyLease(slot, record, *link, region);
  }
  PlaceLease(slot, record, *link, *end);
}

// What it leases is host memory.
void VerbsFabric::PlaceLease(LeaseSlot slot, LeaseRecord& record, Link& link, OwnerEnd& end) {
  if (traits_.revocation != Revocation::kLeaseMr) {
    record.pin = domain_->Find(record.data, record.bytes);
  }
  if (!record.pin || record.bytes > kWindowBytesMax) return RegisterLease(slot, record, link);
  if (traits_.revocation == Revocation::kLane) {
    record.rkey = record.pin.mr()->rkey;
    ++link.counters.lane_leases;
    return LeaseLive(slot, record, end);
  }
  record.state = LeaseState::kBinding;
  ++link.counters.window_leases;
  TakeWindow(slot, record, end);
}

void VerbsFabric::LeaseLive(LeaseSlot slot, LeaseRecord& record, const OwnerEnd& end) {
  record.state = LeaseState::kLive;
  KeyFields key;
  key.address = reinterpret_cast<uint64_t>(record.data);
  key.bytes = record.bytes;
  key.source = record.source;
  key.rkey = record.rkey;
  key.lane_generation = end.lane.generation;
  events_.Leased(slot, MakeKey(key));
  if (record.end_wanted) EndLive(slot, record);
}

// ---- a registration for the lease

// `of_device`: its region, where it is memory of one.
void VerbsFabric::RegisterLease(LeaseSlot slot, LeaseRecord& record, Link& link,
                                const memory::RegionRef& of_device) {
  record.pin.Reset();
  record.state = LeaseState::kRegistering;
  ++link.counters.registered_leases;
  ++link.jobs;
  PostJob([this, slot, id = link.id, domain = domain_, data = record.data, bytes = record.bytes,
           of_device]() -> Inbox::News {
    absl::StatusOr<ibv_mr*> made = of_device == nullptr
                                       ? domain->RegisterRange(data, bytes, true)
                                       : domain->LeaseDevice(*of_device, data, bytes);
    return [this, slot, id, made = std::move(made), of_device] {
      OnLeaseRegistered(slot, id, made, of_device);
    };
  });
}

void VerbsFabric::OnLeaseRegistered(LeaseSlot slot, LinkId id, absl::StatusOr<ibv_mr*> made,
                                    const memory::RegionRef& of_device) {
  Link& link = *Find(id);  // it waits for its jobs
  LeaseRecord* const record = RecordIf(slot);
  VERBENA_CHECK(record != nullptr && record->state == LeaseState::kRegistering);
  auto* const end = static_cast<OwnerEnd*>(ends_.Find(record->end));
  const bool lane_up = end != nullptr && end->up();
  if (!made.ok() && of_device != nullptr && lane_up && !record->end_wanted) {
    --link.jobs;
    --link.counters.registered_leases;
    return CopyLease(slot, *record, link, of_device);
  }
  if (made.ok()) {
    record->own = *made;
    record->rkey = (*made)->rkey;
    if (of_device != nullptr) {
      record->source = Source::kDevice;  // its key goes by the device's addresses
    } else {
      record->data = static_cast<const std::byte*>((*made)->addr);  // a copy's, where it has one
    }
  }
  if (made.ok() && lane_up) {
    --link.jobs;
    return LeaseLive(slot, *record, *end);
  }
  Error error = link.closing ? Error::kLinkDown : Error::kLaneDown;
  if (!made.ok() && of_device == nullptr) {  // else it would have been copied
    if (leases_refused_.Due()) {
      VERBENA_LOG(kWarning, "verbs: no lease of ", record->bytes,
                  " bytes: ", made.status().message(), leases_refused_.KeptBack());
    }
    const bool exhausted = absl::IsResourceExhausted(made.status());
    error = exhausted ? Error::kNoMemory : Error::kUnsupported;
  }
  record->state = LeaseState::kEnding;
  record->refusal = error;
  if (record->own != nullptr) {
    Deregister(slot, *record);
  } else {
    EndedNow(slot, *record);
  }
  --link.jobs;
  AdvanceDown(link);
}

// The answer follows.
void VerbsFabric::Deregister(LeaseSlot slot, LeaseRecord& record) {
  ++Find(record.link)->jobs;
  record.deregistering = true;
  PostJob([this, slot, id = record.link, mr = std::exchange(record.own, nullptr)]() -> Inbox::News {
    Domain::Deregister(mr);
    return [this, slot, id] {
      Link& link = *Find(id);
      LeaseRecord* const ended = RecordIf(slot);
      if (ended != nullptr && ended->state == LeaseState::kEnding) EndedNow(slot, *ended);
      --link.jobs;
      AdvanceDown(link);
    };
  });
}

// Nothing of it can be read any more.
void VerbsFabric::EndedNow(LeaseSlot slot, LeaseRecord& record) {
  const bool answer = record.end_wanted;
  const bool forced = record.forced;
  const Error refusal = record.refusal;
  auto* const end = static_cast<OwnerEnd*>(ends_.Find(record.end));
  record = LeaseRecord();
  if (refusal != Error::kOk) events_.LeaseRefused(slot, refusal);
  if (answer) events_.Revoked(slot);
  if (forced && end != nullptr) LookAtOwner(*end);
}

// ---- a window for the lease

void VerbsFabric::TakeWindow(LeaseSlot slot, LeaseRecord& record, OwnerEnd& end) {
  if (windows_.empty()) {
    want_window_.push_back(slot);
    return WantWindows();
  }
  record.window = windows_.front();
  windows_.pop_front();
  AddWork(end, {slot, OwnerEnd::Op::kBind, record.window});
}

void VerbsFabric::WantWindows() {
  if (std::exchange(windows_asked_, true)) return;
  PostJob([this, pd = domain_->pd()]() -> Inbox::News {
    std::vector<ibv_mw*> made;
    absl::Status status;
    while (made.size() < kWindowBatch && status.ok()) {
      absl::StatusOr<ibv_mw*> window = Made("ibv_alloc_mw", ibv_alloc_mw(pd, IBV_MW_TYPE_2));
      status = window.status();
      if (window.ok()) made.push_back(*window);
    }
    return [this, made = std::move(made), status]() mutable { OnWindows(std::move(made), status); };
  });
}

void VerbsFabric::OnWindows(std::vector<ibv_mw*> made, const absl::Status& status) {
  windows_asked_ = false;
  windows_made_ += made.size();
  windows_.insert(windows_.end(), made.begin(), made.end());
  for (const LeaseSlot slot : std::exchange(want_window_, {})) {
    LeaseRecord* const record = RecordIf(slot);
    const bool waits =
        record != nullptr && record->state == LeaseState::kBinding && record->window == nullptr;
    if (!waits) continue;
    auto* const end = static_cast<OwnerEnd*>(ends_.Find(record->end));
    VERBENA_CHECK(end != nullptr && end->up(), "a lease waits for a window on a lane that is down");
    if (windows_.empty() && made.empty()) {
      // The device has no more: a registration does as well, and costs more.
      VERBENA_LOG(kWarning, "verbs: ", status.message());
      RegisterLease(slot, *record, *Find(record->link));
    } else {
      TakeWindow(slot, *record, *end);
    }
  }
}

void VerbsFabric::AddWork(OwnerEnd& end, OwnerEnd::Work work) {
  end.waiting.push_back(work);
  if (end.listed) return;
  end.listed = true;
  owners_.push_back(end.number);
}

void VerbsFabric::PostOwned() {
  for (size_t i = 0; i < owners_.size(); ++i) {
    auto* const end = static_cast<OwnerEnd*>(ends_.Find(owners_[i]));
    if (end == nullptr || !end->listed) continue;
    end->listed = false;
    if (end->up()) PostOwnedOf(*end);
  }
  owners_.clear();
}

// As much as there is room for, with one doorbell; completions bring the rest.
void VerbsFabric::PostOwnedOf(OwnerEnd& end) {
  std::array<ibv_send_wr, OwnerEnd::kRing> works;
  uint32_t count = 0;
  while (!end.waiting.empty() && count < end.room()) {
    const OwnerEnd::Work item = end.waiting.front();
    end.waiting.pop_front();
    LeaseRecord& record = *RecordIf(item.slot);
    ibv_send_wr& work = works[count];
    work = {};
    work.wr_id = WorkId{WorkKind::kOwn, end.number, end.posted + count}.word();
    work.send_flags = IBV_SEND_SIGNALED;
    if (item.op == OwnerEnd::Op::kBind) {
      work.opcode = IBV_WR_BIND_MW;
      work.bind_mw.mw = item.window;
      work.bind_mw.rkey = ibv_inc_rkey(item.window->rkey);
      work.bind_mw.bind_info.mr = record.pin.mr();
      work.bind_mw.bind_info.addr = reinterpret_cast<uint64_t>(record.data);
      work.bind_mw.bind_info.length = record.bytes;
      work.bind_mw.bind_info.mw_access_flags = IBV_ACCESS_REMOTE_READ;
    } else {
      work.opcode = IBV_WR_LOCAL_INV;
      work.invalidate_rkey = item.window->rkey;
    }
    if (count > 0) works[count - 1].next = &work;
    end.works[(end.posted + count) % OwnerEnd::kRing] = item;
    ++count;
  }
  if (count == 0) return;
  ibv_send_wr* refused = nullptr;
  const int result = ibv_post_send(end.qp(), works.data(), &refused);
  const uint32_t taken = result == 0          ? count
                         : refused == nullptr ? 0
                                              : static_cast<uint32_t>(refused - works.data());
  const uint32_t first = end.posted;
  end.posted += taken;
  bulk_due_ += taken;
  if (result == 0) return;
  VERBENA_LOG(kWarning, "verbs: a bulk lane takes no work: errno ", result);
  // As if they had failed: the lane goes down.
  for (uint32_t i = count; i > taken; --i) {
    end.waiting.push_front(end.works[(first + i - 1) % OwnerEnd::kRing]);
  }
  FailEnd(end);
}

void VerbsFabric::OnOwnDone(OwnerEnd& end, const WorkId& id, ibv_wc_status status) {
  if (end.outstanding() == 0 || id.number != end.completed) {
    ++counters_.stale_completions;
    return;
  }
  const OwnerEnd::Work work = end.works[end.completed % OwnerEnd::kRing];
  ++end.completed;
  const bool ok = status == IBV_WC_SUCCESS;
  if (ok && work.op == OwnerEnd::Op::kBind) work.window->rkey = ibv_inc_rkey(work.window->rkey);
  if (!ok && end.up()) {
    VERBENA_LOG(kWarning, "verbs: a ", work.op == OwnerEnd::Op::kBind ? "bind" : "invalidation",
                " failed: ", ibv_wc_status_str(status));
    FailEnd(end);
  }
  if (work.op == OwnerEnd::Op::kBind) {
    OnBound(end, work, ok);
  } else {
    OnInvalidated(end, work, ok);
  }
  if (end.up() && !end.waiting.empty() && !end.listed) {
    end.listed = true;
    owners_.push_back(end.number);
  }
}

void VerbsFabric::OnBound(OwnerEnd& end, const OwnerEnd::Work& work, bool ok) {
  LeaseRecord* const record = RecordIf(work.slot);
  if (record == nullptr || record->state != LeaseState::kBinding) return;  // answered: lane down
  VERBENA_CHECK(ok, "a bind that failed left its lease waiting");
  record->rkey = work.window->rkey;
  LeaseLive(work.slot, *record, end);
}

void VerbsFabric::OnInvalidated(OwnerEnd& end, const OwnerEnd::Work& work, bool ok) {
  if (!ok || !end.up()) return;  // the window goes with its queue pair, and the answer comes then
  LeaseRecord* const record = RecordIf(work.slot);
  VERBENA_CHECK(record != nullptr && record->state == LeaseState::kEnding);
  windows_.push_back(std::exchange(record->window, nullptr));
  EndedNow(work.slot, *record);
}

// A READ that met an invalidated window may have put the queue pair into the error state, and no
// event tells its owner.
void VerbsFabric::LookAtOwner(const OwnerEnd& end) {
  if (!end.up()) return;
  PostJob([this, number = end.number, pair = end.owned.pair.get()]() -> Inbox::News {
    const absl::StatusOr<bool> failed = pair->Failed();
    const bool down = !failed.ok() || *failed;
    return [this, number, down] {
      End* const looked_at = ends_.Find(number);
      if (down && looked_at != nullptr && looked_at->up()) FailEnd(*looked_at);
    };
  });
}

// ---- the end of a lease

void VerbsFabric::EndLease(LeaseSlot slot, bool forced) {
  LeaseRecord* const record = RecordIf(slot);
  if (record == nullptr) return events_.Revoked(slot);
  record->end_wanted = true;
  record->forced |= forced;
  switch (record->state) {
    case LeaseState::kCopying:
    case LeaseState::kRegistering:
    case LeaseState::kBinding:
    case LeaseState::kEnding:
      return;  // it follows
    case LeaseState::kLive:
      return EndLive(slot, *record);
    case LeaseState::kVoid:
      if (ends_.Find(record->end) != nullptr) {
        record->state = LeaseState::kEnding;  // AnswerLeases
        return;
      }
      record->forced = false;
      return EndedNow(slot, *record);
    case LeaseState::kNone:
      break;
  }
}

void VerbsFabric::EndLive(LeaseSlot slot, LeaseRecord& record) {
  record.state = LeaseState::kEnding;
  auto& end = static_cast<OwnerEnd&>(*ends_.Find(record.end));
  if (record.window != nullptr) {
    return AddWork(end, {slot, OwnerEnd::Op::kInvalidate, record.window});
  }
  if (record.own != nullptr) return Deregister(slot, record);
  if (record.forced) return FailEnd(end);  // by lane: AnswerLeases
  EndedNow(slot, record);
}

// The lane goes down. Everything that its leases hold goes with its queue pair; those that were
// being made are refused, and those that were ending are answered, when it is gone.
void VerbsFabric::VoidLeases(OwnerEnd& end) {
  end.waiting.clear();
  const Error error = Find(end.link)->closing ? Error::kLinkDown : Error::kLaneDown;
  for (uint32_t index = 0; index < leases_.size(); ++index) {
    LeaseRecord& record = leases_[index];
    if (record.state == LeaseState::kNone || record.end != end.number) continue;
    // OnLeaseRegistered, EndLeaseCopy
    if (record.state == LeaseState::kRegistering || record.state == LeaseState::kCopying) continue;
    if (record.window != nullptr) end.windows.push_back(std::exchange(record.window, nullptr));
    if (record.own != nullptr) end.own.push_back(std::exchange(record.own, nullptr));
    if (record.pin) end.pins.push_back(std::move(record.pin));
    if (record.copy != nullptr) end.copies.push_back(std::move(record.copy));
    if (record.state == LeaseState::kBinding) {
      record.refusal = error;
      record.state = LeaseState::kEnding;
    } else if (record.state == LeaseState::kLive) {
      record.state = LeaseState::kVoid;
    }
  }
}

// Its queue pair is gone, and with it everything that its leases held.
void VerbsFabric::AnswerLeases(const OwnerEnd& end) {
  for (uint32_t index = 0; index < leases_.size(); ++index) {
    LeaseRecord& record = leases_[index];
    if (record.state != LeaseState::kEnding || record.end != end.number) continue;
    if (record.deregistering) continue;
    const LeaseSlot slot{index, record.generation};
    record.forced = false;
    EndedNow(slot, record);
  }
}

}  // namespace verbena::fabric::verbs
