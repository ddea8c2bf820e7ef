#include "rpc/memory/device_regions.h"

#include <algorithm>
#include <list>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/registrars.h"

namespace verbena::memory {
namespace {

// Domains hear of it when it is made and when its last user is gone: what peers have of it is
// withdrawn then. Its number is its own and not the allocation's: of one that was forgotten while
// it was used, another region is made, which the end of the first does not concern.
class DeviceRegion final : public Region {
 public:
  DeviceRegion(Device& device, const Extent& extent)
      : Region(device, {extent.base, extent.bytes, NextBufferId()}, RegionKind::kForeign, -1, 0),
        described_(extent) {}
  ~DeviceRegion() override {
    PostToSetup([id = buffer_id()] { UnregisterRegion(id).IgnoreError(); });
  }
  const Extent& described() const { return described_; }

 private:
  const Extent described_;
};

// Adjoining mappings.
class JoinedRegion final : public Region {
 public:
  JoinedRegion(const Extent& extent, std::vector<RegionRef> parts)
      : Region(parts.front()->device(), extent, RegionKind::kForeign, -1, 0),
        parts_(std::move(parts)) {}
  const std::vector<RegionRef>& parts() const { return parts_; }

 private:
  const std::vector<RegionRef> parts_;
};

struct Table {
  using Key = std::pair<Device*, std::byte*>;
  struct Entry {
    std::shared_ptr<const DeviceRegion> region;
    std::list<Key>::iterator turn;
  };
  absl::Mutex mutex;
  std::map<Key, Entry> regions ABSL_GUARDED_BY(mutex);
  std::list<Key> turns ABSL_GUARDED_BY(mutex);  // longest unused first
};

Table& TheTable() {
  static Table* const table = new Table;
  return *table;
}

// `gone` takes what must not be destroyed under the lock.
RegionRef Find(Table& table, Device& device, const Extent& extent, RegionRef& gone)
    ABSL_EXCLUSIVE_LOCKS_REQUIRED(table.mutex) {
  const Table::Key key(&device, extent.base);
  const auto it = table.regions.find(key);
  if (it == table.regions.end()) return nullptr;
  if (it->second.region->described().buffer_id == extent.buffer_id) {
    table.turns.splice(table.turns.end(), table.turns, it->second.turn);
    return it->second.region;
  }
  gone = std::move(it->second.region);  // freed, and allocated again
  table.turns.erase(it->second.turn);
  table.regions.erase(it);
  return nullptr;
}

// Forgets what was freed: a peer that maps it keeps it from being free. Setup thread.
void DropGone() {
  Table& table = TheTable();
  std::vector<RegionRef> all, gone;  // not destroyed under the lock
  {
    absl::MutexLock lock(&table.mutex);
    for (const auto& [key, entry] : table.regions) all.push_back(entry.region);
  }
  for (const RegionRef& region : all) {
    if (StillThere(*region)) continue;
    absl::MutexLock lock(&table.mutex);
    const auto it = table.regions.find({&region->device(), region->base()});
    if (it == table.regions.end() || it->second.region != region) continue;
    gone.push_back(std::move(it->second.region));
    table.turns.erase(it->second.turn);
    table.regions.erase(it);
  }
}

RegionRef FindOrMake(Device& device, const Extent& extent) {
  Table& table = TheTable();
  RegionRef gone, longest_unused;
  std::shared_ptr<const DeviceRegion> made;
  {
    absl::MutexLock lock(&table.mutex);
    if (RegionRef known = Find(table, device, extent, gone)) return known;
    if (table.regions.size() == kDeviceRegionsMax) {
      const auto it = table.regions.find(table.turns.front());
      longest_unused = std::move(it->second.region);
      table.regions.erase(it);
      table.turns.pop_front();
    }
    made = std::make_shared<DeviceRegion>(device, extent);
    const Table::Key key(&device, extent.base);
    table.regions[key] = {made, table.turns.insert(table.turns.end(), key)};
  }
  PostToSetup([made] {
    DropGone();
    RegisterWhereTaken(made, static_cast<uint8_t>(Use::kLeasable));
  });
  return made;
}

}  // namespace

absl::StatusOr<std::vector<RegionRef>> DeviceRegions(Device& device, const std::byte* data,
                                                     size_t bytes) {
  absl::StatusOr<std::vector<Extent>> extents = device.Describe(data, bytes);
  if (!extents.ok()) return extents.status();
  std::vector<RegionRef> regions;
  for (const Extent& extent : *extents) regions.push_back(FindOrMake(device, extent));
  return regions;
}

RegionRef JoinRegions(std::vector<RegionRef> parts) {
  Extent extent{parts.front()->base(), 0, NextBufferId()};
  for (const RegionRef& part : parts) extent.bytes += part->bytes();
  return std::make_shared<JoinedRegion>(extent, std::move(parts));
}

absl::Span<const RegionRef> PartsOf(const Region& region) {
  if (region.kind() != RegionKind::kForeign) return {};
  const auto* const joined = dynamic_cast<const JoinedRegion*>(&region);
  return joined == nullptr ? absl::Span<const RegionRef>() : joined->parts();
}

Extent ExtentOf(const Region& region) {
  if (region.kind() != RegionKind::kForeign) return region.extent();
  const auto* const described = dynamic_cast<const DeviceRegion*>(&region);
  return described == nullptr ? region.extent() : described->described();
}

bool StillThere(const Region& region) {
  const absl::Span<const RegionRef> parts = PartsOf(region);
  if (!parts.empty()) {
    return std::all_of(parts.begin(), parts.end(),
                       [](const RegionRef& part) { return StillThere(*part); });
  }
  if (region.device().host_accessible() || region.kind() != RegionKind::kForeign) return true;
  return region.device().IsThere(ExtentOf(region));
}

}  // namespace verbena::memory
