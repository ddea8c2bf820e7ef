// Leases that this end owns, and READs of the peer's.
#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/shm/shm_fabric.h"

namespace verbena::fabric::shm {
namespace {

// Slots of a session's table; higher indexes are a bug of the caller's.
constexpr uint32_t kLeaseSlotsMax = 1 << 22;

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
  record = LeaseRecord{LeaseRecord::State::kPending, slot.generation, kNoEntry, id, lane.index};
  if (!Mappable(*region)) {
    return LeaseLive(slot, *link, 0, reinterpret_cast<uint64_t>(data), bytes);
  }
  const uint64_t buffer = region->buffer_id();
  const bool known = std::binary_search(link->exported.begin(), link->exported.end(), buffer);
  if (known) {
    return LeaseLive(slot, *link, buffer, static_cast<uint64_t>(data - region->base()), bytes);
  }
  const bool first =
      std::none_of(link->pending_leases.begin(), link->pending_leases.end(),
                   [buffer](const PendingLease& p) { return p.region->buffer_id() == buffer; });
  link->pending_leases.push_back({slot, region, data, bytes});
  if (first) PostExport(*link, region);
}

void ShmFabric::LeaseLive(LeaseSlot slot, Link& link, uint64_t buffer, uint64_t start,
                          uint64_t bytes) {
  RemoteKey key;
  LeaseRecord& record = RecordOf(slot);
  record.entry = link.leases.Add(buffer, start, bytes, key);
  record.state = LeaseRecord::State::kLive;
  if (record.entry != kNoEntry) return events_.Leased(slot, key);
  record = LeaseRecord();
  events_.LeaseRefused(slot, Error::kNoMemory);
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
  if (status.ok()) {
    link.exported.insert(std::upper_bound(link.exported.begin(), link.exported.end(), buffer),
                         buffer);
  }
  const Error refusal = absl::IsUnavailable(status) ? Error::kLinkDown : Error::kUnsupported;
  if (refusal == Error::kUnsupported && !status.ok()) {
    VERBENA_LOG(kWarning, "memory cannot be leased over shm: ", status.message());
  }
  std::vector<PendingLease> others;
  for (PendingLease& p : link.pending_leases) {
    if (p.region->buffer_id() != buffer) {
      others.push_back(std::move(p));
    } else if (status.ok()) {
      LeaseLive(p.slot, link, buffer, static_cast<uint64_t>(p.data - p.region->base()), p.bytes);
    } else {
      RecordOf(p.slot) = LeaseRecord();
      events_.LeaseRefused(p.slot, refusal);
    }
  }
  link.pending_leases = std::move(others);
}

void ShmFabric::Revoke(LeaseSlot slot) {
  LeaseRecord& record = RecordOf(slot);
  if (record.state != LeaseRecord::State::kNone && record.generation == slot.generation) {
    Link* link = Find(record.link);
    if (record.state == LeaseRecord::State::kLive && link != nullptr) {
      link->leases.Revoke(record.entry);
    }
    if (record.state == LeaseRecord::State::kPending && link != nullptr) {
      std::erase_if(link->pending_leases, [slot](const PendingLease& p) { return p.slot == slot; });
      events_.LeaseRefused(slot, Error::kLeaseLost);  // its answer is owed first
    }
    record = LeaseRecord();
  }
  events_.Revoked(slot);
}

void ShmFabric::VoidLeases(Link& link, const Lane* lane) {
  for (LeaseRecord& record : lease_records_) {
    if (record.state != LeaseRecord::State::kLive || record.link != link.id) continue;
    if (lane != nullptr && record.lane_index != lane->index) continue;
    link.leases.Revoke(record.entry);
    record.state = LeaseRecord::State::kVoid;
  }
}

void ShmFabric::Read(ReadSlot slot, LinkId id, Lane lane, const RemoteKey& key, uint64_t offset,
                     absl::Span<const LocalPiece> pieces) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) return events_.ReadDone(slot, Error::kLinkDown);
  link->active = true;
  transfers_.Add(slot, *link, lane, key, offset, pieces);
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
    const auto it = std::lower_bound(link->exported.begin(), link->exported.end(), buffer);
    if (it == link->exported.end() || *it != buffer) continue;
    link->exported.erase(it);
    options_.post_setup([channel = link->channel, buffer] {
      channel->SendWithdrawal(buffer).IgnoreError();  // else it ends with the link
    });
  }
}

}  // namespace verbena::fabric::shm
