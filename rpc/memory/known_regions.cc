#include "rpc/memory/known_regions.h"

#include <atomic>
#include <map>
#include <tuple>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/memory/device_regions.h"

namespace verbena::memory {
namespace {

// (device kind, device index, first address); devices may have address spaces of their own.
using Key = std::tuple<uint8_t, int, uintptr_t>;

Key KeyOf(::verbena::Device where, const void* address) {
  return {static_cast<uint8_t>(where.kind()), where.index(), reinterpret_cast<uintptr_t>(address)};
}

struct Known {
  size_t bytes = 0;
  uint64_t buffer_id = 0;
  std::weak_ptr<const Region> region;
};

struct Directory {
  absl::Mutex mutex;
  std::map<Key, Known> regions ABSL_GUARDED_BY(mutex);
};

Directory& TheDirectory() {
  static Directory* const directory = new Directory;  // outlives every static Buffer
  return *directory;
}

// The entry that begins at or before `key` on the same device, or end().
std::map<Key, Known>::iterator AtOrBefore(std::map<Key, Known>& regions, const Key& key) {
  auto it = regions.upper_bound(key);
  if (it == regions.begin()) return regions.end();
  --it;
  const bool same_device =
      std::get<0>(it->first) == std::get<0>(key) && std::get<1>(it->first) == std::get<1>(key);
  return same_device ? it : regions.end();
}

}  // namespace

uint64_t NextBufferId() {
  static std::atomic<uint64_t> next{1};
  return next.fetch_add(1, std::memory_order_relaxed);
}

absl::Status AddKnownRegion(const RegionRef& region) {
  Directory& directory = TheDirectory();
  const Key key = KeyOf(region->device().where(), region->base());
  // The last byte: the first entry at or before it is the only one that can overlap.
  const Key last = KeyOf(region->device().where(), region->base() + (region->bytes() - 1));
  absl::MutexLock lock(&directory.mutex);
  const auto before = AtOrBefore(directory.regions, last);
  if (before != directory.regions.end() &&
      std::get<2>(before->first) + before->second.bytes > std::get<2>(key)) {
    return absl::AlreadyExistsError(
        absl::StrCat("[0x", absl::Hex(std::get<2>(key)), ", + ", region->bytes(), ") overlaps [0x",
                     absl::Hex(std::get<2>(before->first)), ", + ", before->second.bytes,
                     "), which is already known"));
  }
  directory.regions[key] = Known{region->bytes(), region->buffer_id(), region};
  return absl::OkStatus();
}

void ForgetRegion(const Region& region) {
  Directory& directory = TheDirectory();
  absl::MutexLock lock(&directory.mutex);
  const auto it = directory.regions.find(KeyOf(region.device().where(), region.base()));
  if (it != directory.regions.end() && it->second.buffer_id == region.buffer_id()) {
    directory.regions.erase(it);
  }
}

bool ForgetRegionIfUnused(const RegionRef& region, long* users) {
  Directory& directory = TheDirectory();
  absl::MutexLock lock(&directory.mutex);
  // New holders come through FindKnownRegion only, which needs the lock.
  *users = region.use_count() - 1;
  if (*users > 0) return false;
  const auto it = directory.regions.find(KeyOf(region->device().where(), region->base()));
  if (it != directory.regions.end() && it->second.buffer_id == region->buffer_id()) {
    directory.regions.erase(it);
  }
  return true;
}

RegionRef FindKnownRegion(const void* data, size_t bytes, ::verbena::Device where) {
  Directory& directory = TheDirectory();
  const Key key = KeyOf(where, data);
  absl::MutexLock lock(&directory.mutex);
  const auto it = AtOrBefore(directory.regions, key);
  if (it == directory.regions.end()) return nullptr;
  const uintptr_t offset = std::get<2>(key) - std::get<2>(it->first);
  if (offset > it->second.bytes || bytes > it->second.bytes - offset) return nullptr;
  return it->second.region.lock();
}

std::vector<RegionRef> KnownRegions() {
  Directory& directory = TheDirectory();
  std::vector<RegionRef> all;
  absl::MutexLock lock(&directory.mutex);
  for (const auto& [key, known] : directory.regions) {
    if (RegionRef region = known.region.lock()) all.push_back(std::move(region));
  }
  return all;
}

absl::StatusOr<RegionRef> RegionFor(std::byte* data, size_t bytes, ::verbena::Device where) {
  if (RegionRef known = FindKnownRegion(data, bytes, where)) return known;
  absl::StatusOr<Device*> device = FindDevice(where);
  if (!device.ok()) return device.status();
  if (!(*device)->host_accessible()) {
    absl::StatusOr<std::vector<RegionRef>> regions = DeviceRegions(**device, data, bytes);
    if (!regions.ok()) return regions.status();
    if (regions->size() == 1) return (*regions)[0];
    return JoinRegions(*std::move(regions));
  }
  return RegionRef(std::make_shared<Region>(**device, Extent{data, bytes, NextBufferId()},
                                            RegionKind::kForeign, -1, 0));
}

}  // namespace verbena::memory
