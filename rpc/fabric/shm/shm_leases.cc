// Leases that this end owns, and READs of the peer's.
#include <algorithm>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric::shm {
namespace {

// Slots of a session's table; higher indexes are a bug of the caller's.
constexpr uint32_t kLeaseSlotsMax = 1 << 22;
// Buffers of which it is remembered that no peer can map them. Beyond, the first is found out
// again.
constexpr size_t kStagedMax = 1024;

// Memory of a device that is there, and that no process can be given.
bool CanStage(const memory::Region& region, const absl::Status& why) {
  return !region.device().host_accessible() &&
         (absl::IsFailedPrecondition(why) || absl::IsPermissionDenied(why) ||
          absl::IsUnimplemented(why));
}

// Else it cannot be leased by its address in this process.
bool ReadsProcess(const Link& link) {
  return link.theirs.control().reads_process.load(std::memory_order_relaxed) != 0;
}

void RememberStaged(Link& link, uint64_t buffer) {
  if (link.staged.size() == kStagedMax) link.staged.erase(link.staged.begin());
  link.staged.push_back(buffer);
}

// Whether peers will map it; else they read it from this process.
bool Mappable(const memory::Region& region) {
  if (!region.device().host_accessible()) return true;
  return region.kind() == memory::RegionKind::kSlab && region.fd() >= 0 && region.buffer_id() != 0;
}

}  // namespace

ShmFabric::LeaseRecord& ShmFabric::RecordOf(LeaseSlot slot) {
  VERBENA_CHECK(slot.index < kLeaseSlotsMax, "lease slot ", slot.index);
  if (slot.index >= lease_records_.size()) lease_records_.resize(slot.index + 1);
  return lease_records_[slot.index];
}

void ShmFabric::Lease(LeaseSlot slot, LinkId id, Lane lane, const memory::RegionRef& region,
                      const std::byte* data, size_t bytes) {
  Link* link = Find(id);
  VERBENA_CHECK(data >= region->base() && bytes <= region->bytes() &&
                static_cast<size_t>(data - region->base()) <= region->bytes() - bytes);
  if (link == nullptr || link->closing) return events_.LeaseRefused(slot, Error::kLinkDown);
  if (lane.index != 0) return events_.LeaseRefused(slot, Error::kUnsupported);
  LeaseRecord& record = RecordOf(slot);
  record = LeaseRecord{
      LeaseRecord::State::kPending, slot.generation, kNoEntry, 0, id, lane.index, 0, {}};
  const PendingLease lease{slot, region, data, bytes};
  if (!Mappable(*region)) return LeaseLive(lease, *link, 0);
  const uint64_t buffer = region->buffer_id();
  if (link->exports.StateOf(buffer) == Exports::State::kSent) {
    return LeaseLive(lease, *link, buffer);
  }
  if (std::find(link->staged.begin(), link->staged.end(), buffer) != link->staged.end()) {
    return LeaseLive(lease, *link, kStagedBuffer);
  }
  Pend(*link, lease);
}

void ShmFabric::Pend(Link& link, const PendingLease& lease) {
  const uint64_t buffer = lease.region->buffer_id();
  // A lease that was revoked meanwhile may have left its job behind.
  if (link.exports.StateOf(buffer) == Exports::State::kNone) {
    // Stages, without which others could not go on, have a place, kept for them until they take it.
    const bool last = lease.slot == kStagesSlot || (link.served != nullptr && link.served->shown);
    if (!MakeRoom(link, last ? 1 : 2)) {
      return LeaseUnexported(link, lease,
                             absl::ResourceExhaustedError(absl::StrCat(
                                 "leases need more than ", options_.exports_max - 1, " exports")));
    }
    link.exports.Begin(buffer);
    PostExport(link, lease.region);
  }
  link.pending_leases.push_back(lease);
}

bool ShmFabric::MakeRoom(Link& link, uint32_t count) {
  while (link.exports.size() + count > options_.exports_max) {
    const std::optional<uint64_t> unused = link.exports.TakeUnused();
    if (!unused) return false;
    PostWithdrawal(link, *unused);
  }
  return true;
}

void ShmFabric::LeaseUnexported(Link& link, const PendingLease& lease, const absl::Status& why) {
  if (!std::exchange(link.said_unexported, true)) {
    VERBENA_LOG(kWarning, "shm: some memory is leased to a peer without an export, and read by ",
                "stages or from this process: ", why.message());
  }
  if (lease.slot == kStagesSlot) return stages_.OnShown(link, false);
  if (!lease.region->device().host_accessible()) return LeaseLive(lease, link, kStagedBuffer);
  if (ReadsProcess(link)) return LeaseLive(lease, link, 0);
  RecordOf(lease.slot) = LeaseRecord();
  events_.LeaseRefused(lease.slot, Error::kNoMemory);
}

void ShmFabric::LeaseLive(const PendingLease& lease, Link& link, uint64_t buffer) {
  const bool by_address = buffer == 0 || buffer == kStagedBuffer;
  const uint64_t start = by_address ? reinterpret_cast<uint64_t>(lease.data)
                                    : static_cast<uint64_t>(lease.data - lease.region->base());
  RemoteKey key;
  LeaseRecord& record = RecordOf(lease.slot);
  record.entry = link.leases.Add(buffer, start, lease.bytes, key);
  record.word = key.words[0];
  record.state = LeaseRecord::State::kLive;
  if (record.entry == kNoEntry) {
    record = LeaseRecord();
    return events_.LeaseRefused(lease.slot, Error::kNoMemory);
  }
  if (!by_address) link.exports.Use(record.exported = buffer);
  // The peer may ask for device memory by way of stages, whether or not it was exported.
  if (!lease.region->device().host_accessible()) {
    record.region = lease.region;
    stages_.Lend(link, lease.slot, record.entry, record.word, lease.region, lease.data,
                 lease.bytes);
  }
  events_.Leased(lease.slot, key);
}

void ShmFabric::PostExport(Link& link, const memory::RegionRef& region) {
  options_.post_setup(
      [inbox = inbox_, channel = link.channel, region, id = link.id, serial = link.serial] {
        JobResult result;
        result.kind = JobResult::Kind::kExported;
        result.link = id;
        result.link_serial = serial;
        result.buffer = region->buffer_id();
        result.status = channel->SendExport(*region);
        inbox->Push(std::move(result));
      });
}

void ShmFabric::OnExported(Link& link, uint64_t buffer, const absl::Status& status) {
  link.exports.End(buffer, status.ok());
  const Error refusal = absl::IsUnavailable(status) ? Error::kLinkDown : Error::kUnsupported;
  std::vector<PendingLease> others;
  bool stages = false, first = true;
  for (PendingLease& p : std::exchange(link.pending_leases, {})) {
    if (p.region->buffer_id() != buffer) {
      others.push_back(std::move(p));
      continue;
    }
    const bool staged = CanStage(*p.region, status);
    stages |= staged;
    if (staged && std::exchange(first, false)) RememberStaged(link, buffer);
    if (absl::IsResourceExhausted(status)) {
      LeaseUnexported(link, p, status);
    } else if (p.slot == kStagesSlot) {
      OnStagesExported(link, status.ok());
    } else if (status.ok() || staged) {
      LeaseLive(p, link, staged ? kStagedBuffer : buffer);
    } else {
      RecordOf(p.slot) = LeaseRecord();
      events_.LeaseRefused(p.slot, refusal);
    }
  }
  if (!status.ok() && !absl::IsUnavailable(status) && !absl::IsResourceExhausted(status)) {
    VERBENA_LOG(kWarning, "memory cannot be ", stages ? "mapped by peers" : "leased",
                " over shm: ", status.message());
  }
  link.pending_leases.insert(link.pending_leases.end(), others.begin(), others.end());
}

void ShmFabric::Revoke(LeaseSlot slot) {
  LeaseRecord& record = RecordOf(slot);
  if (record.state == LeaseRecord::State::kNone || record.generation != slot.generation) {
    return events_.Revoked(slot);
  }
  Link* link = Find(record.link);
  if (record.state == LeaseRecord::State::kPending && link != nullptr) {
    std::erase_if(link->pending_leases, [slot](const PendingLease& p) { return p.slot == slot; });
    events_.LeaseRefused(slot, Error::kLeaseLost);  // its answer is owed first
  }
  const uint64_t serial = link == nullptr ? 0 : link->serial;
  const Ending ending{
      slot, record.link, serial, record.entry, record.word, std::move(record.region), SteadyNs()};
  if (record.state == LeaseRecord::State::kLive && link != nullptr) {
    link->leases.Revoke(record.entry);
  }
  if (link != nullptr && record.exported != 0) link->exports.Unuse(record.exported);
  stages_.End(slot);  // also of a lane that is down
  record = LeaseRecord();
  if (StillRead(ending)) {
    endings_.push_back(ending);
  } else {
    events_.Revoked(slot);
  }
}

bool ShmFabric::StillRead(const Ending& ending) const {
  if (stages_.Busy(ending.slot)) return true;
  const Link* const link = Find(ending.link);
  if (link == nullptr || link->serial != ending.link_serial) return false;
  // Of host memory there are no holds, whatever the peer says.
  if (link->hung_up || link->forced || ending.region == nullptr) return false;
  return ending.entry != kNoEntry && IsHeld(link->theirs.desk().holds, ending.entry, ending.word);
}

bool ShmFabric::MayAnswer(const Ending& ending, int64_t now_ns) const {
  if (!StillRead(ending)) return true;
  return !stages_.Busy(ending.slot) && now_ns - ending.since_ns >= options_.revoke_held_ns;
}

bool ShmFabric::AdvanceRevocations() {
  const int64_t now_ns = SteadyNs();
  return std::erase_if(endings_, [&](const Ending& ending) {
           if (!MayAnswer(ending, now_ns)) return false;
           events_.Revoked(ending.slot);
           Link* const link = Find(ending.link);
           if (link == nullptr || link->serial != ending.link_serial) return true;
           if (link->forced) link->held.push_back({ending.entry, ending.word, ending.region});
           if (!StillRead(ending)) return true;
           Keep(*link, ending);
           return true;
         }) > 0;
}

void ShmFabric::Keep(Link& link, const Ending& ending) {
  if (!std::exchange(link.said_kept, true)) {
    VERBENA_LOG(kWarning,
                "a stream of a peer's stands still before it has read a lease that was revoked; "
                "its memory is kept until it has, and that of others that such streams read");
  }
  kept_.push_back(ending);
}

void ShmFabric::LookAtKept() {
  std::erase_if(kept_, [this](const Ending& ending) { return !StillRead(ending); });
}

std::vector<HeldLease> ShmFabric::TakeHeld(Link& link) {
  std::vector<HeldLease> held = std::move(link.held);
  for (LeaseRecord& record : lease_records_) {
    if (record.region == nullptr || record.link != link.id) continue;
    held.push_back({record.entry, record.word, std::move(record.region)});
    record = LeaseRecord();
  }
  for (const std::vector<Ending>* endings : {&endings_, &kept_}) {
    for (const Ending& ending : *endings) {
      if (ending.link != link.id || ending.link_serial != link.serial) continue;
      held.push_back({ending.entry, ending.word, ending.region});
    }
  }
  const Hold* const holds = link.theirs.desk().holds;
  std::erase_if(held, [&](const HeldLease& lease) {
    return link.hung_up || lease.region == nullptr || !IsHeld(holds, lease.entry, lease.word);
  });
  return held;
}

void ShmFabric::VoidLeases(Link& link, const Lane* lane) {
  for (LeaseRecord& record : lease_records_) {
    if (record.state != LeaseRecord::State::kLive || record.link != link.id) continue;
    if (lane != nullptr && record.lane_index != lane->index) continue;
    link.leases.Revoke(record.entry);
    record.state = LeaseRecord::State::kVoid;
  }
  if (lane == nullptr) stages_.EndAll(link);
}

void ShmFabric::Read(ReadSlot slot, LinkId id, Lane lane, const RemoteKey& key, uint64_t offset,
                     absl::Span<const LocalPiece> pieces) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) return events_.ReadDone(slot, Error::kLinkDown);
  link->active = true;
  transfers_.Add(slot, *link, lane, key, offset, pieces);
}

void ShmFabric::OnTransferOrdered(ReadSlot slot, Path path) {
  ordered_ns_ = SteadyNs();
  events_.ReadOrdered(slot, path);
}

void ShmFabric::MakeStages(Link& link) {
  JobResult result;
  result.kind = JobResult::Kind::kMadeStages;
  result.link = link.id;
  result.link_serial = link.serial;
  if (memory::Block block = memory::TryAllocateBlock(kStages * kStageBytes)) {
    return stages_.OnMade(link, std::move(block));
  }
  memory::PostToGrowth([inbox = inbox_, result]() mutable {
    absl::StatusOr<memory::Block> made = memory::AllocateBlock(kStages * kStageBytes);
    if (made.ok()) result.block = std::make_shared<memory::Block>(*std::move(made));
    inbox->Push(std::move(result));
  });
}

void ShmFabric::ShowStages(Link& link) {
  const memory::RegionRef& region = link.served->block.region();
  if (link.exports.StateOf(region->buffer_id()) == Exports::State::kSent) {
    return OnStagesExported(link, true);
  }
  Pend(link, {kStagesSlot, region, link.served->block.data(), link.served->block.bytes()});
}

void ShmFabric::OnStagesExported(Link& link, bool ok) {
  if (ok) link.exports.Use(link.served->block.region()->buffer_id());  // as long as the link
  stages_.OnShown(link, ok);
}

void ShmFabric::OnTransferDone(ReadSlot slot, Error error, Path path) {
  events_.ReadDone(slot, error, path);
}

void ShmFabric::WantImport(Link& link, const Want& want) {
  link.wants.push_back(want);
  if (!link.importing) PostTake(link);
}

void ShmFabric::PostTake(Link& link) {
  link.importing = true;
  link.side_news = false;
  ++link.import_round;
  options_.post_setup([inbox = inbox_, channel = link.channel, host = options_.host, id = link.id,
                       serial = link.serial, wants = std::exchange(link.wants, {})] {
    JobResult result;
    result.kind = JobResult::Kind::kImported;
    result.link = id;
    result.link_serial = serial;
    result.status = channel->Take(*host, wants, result.taken);
    inbox->Push(std::move(result));
  });
}

void ShmFabric::Withdraw(uint64_t buffer) {
  for (const std::unique_ptr<Link>& link : links_) {
    if (link == nullptr || link->closing) continue;
    if (link->exports.Forget(buffer)) PostWithdrawal(*link, buffer);
  }
}

void ShmFabric::PostWithdrawal(Link& link, uint64_t buffer) {
  options_.post_setup([channel = link.channel, buffer] { channel->Withdraw(buffer); });
}

}  // namespace verbena::fabric::shm
