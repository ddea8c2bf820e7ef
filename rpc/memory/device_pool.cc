#include "rpc/memory/device_pool.h"

#include <algorithm>
#include <list>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/check.h"
#include "rpc/memory/allocation.h"
#include "rpc/memory/block_owner.h"
#include "rpc/memory/buddy.h"
#include "rpc/memory/no_growth.h"

namespace verbena::memory {
namespace {

constexpr uint64_t kUnitBytes = 4096;
constexpr auto kSlabUnits = static_cast<uint32_t>(kDeviceSlabBytes / kUnitBytes);
// Large blocks are made in steps, so that one of about the size of the last finds that.
constexpr uint64_t kLargeStepBytes = 2 << 20;

uint32_t UnitsOf(size_t bytes) {
  return static_cast<uint32_t>((std::max<size_t>(bytes, 1) + kUnitBytes - 1) / kUnitBytes);
}

uint64_t LargeBytes(size_t bytes) {
  return (bytes + kLargeStepBytes - 1) / kLargeStepBytes * kLargeStepBytes;
}

class DevicePool final : public BlockOwner {
 public:
  explicit DevicePool(::verbena::Device where) : where_(where) {}

  absl::StatusOr<Block> Allocate(size_t bytes) {
    if (bytes > SIZE_MAX / 2) return AllocateOn(where_, bytes).status();
    const bool large = bytes > kDeviceLargeBytes;
    {
      absl::MutexLock lock(&mutex_);
      Block block = large ? TakeKept(bytes) : TakeUnits(bytes);
      if (block) return block;
    }
    const uint64_t wanted = large ? LargeBytes(bytes) : kDeviceSlabBytes;
    absl::StatusOr<RegionRef> region = AllocateOn(where_, wanted);
    // What this keeps for others may be what the device lacks.
    const bool refused = absl::IsResourceExhausted(region.status()) && !NoGrowth::Refuse();
    if (refused && DropUnused()) region = AllocateOn(where_, wanted);
    if (!region.ok()) return region.status();
    absl::MutexLock lock(&mutex_);
    if (large) return TakeWhole(*std::move(region), bytes);
    slabs_.try_emplace((*region)->base(), *region);
    Block block = TakeUnits(bytes);
    VERBENA_CHECK(block, "a fresh slab has no room for ", bytes, " bytes");
    return block;
  }

  void Free(std::byte* data, size_t bytes) noexcept override {
    std::list<RegionRef> dropped;  // not destroyed under the lock
    absl::MutexLock lock(&mutex_);
    if (const auto large = in_use_.find(data); large != in_use_.end()) {
      kept_bytes_ += large->second->bytes();
      kept_.push_back(std::move(large->second));
      in_use_.erase(large);
      while (kept_bytes_ > kDeviceKeptBytesMax) {
        kept_bytes_ -= kept_.front()->bytes();
        dropped.splice(dropped.end(), kept_, kept_.begin());
      }
      return;
    }
    const auto slab = std::prev(slabs_.upper_bound(data));
    const auto unit = static_cast<uint32_t>(static_cast<uint64_t>(data - slab->first) / kUnitBytes);
    slab->second.units.Free(unit, UnitsOf(bytes));
    // One that is empty is kept, of several the others go.
    if (slab->second.units.free_units() != kSlabUnits) return;
    const bool another = std::any_of(slabs_.begin(), slabs_.end(), [&](const auto& other) {
      return other.first != slab->first && other.second.units.free_units() == kSlabUnits;
    });
    if (!another) return;
    dropped.push_back(std::move(slab->second.region));
    slabs_.erase(slab);
  }

 private:
  struct Slab {
    explicit Slab(RegionRef r) : region(std::move(r)), units(kSlabUnits) {}
    RegionRef region;
    Buddy units;
  };

  // What nobody uses goes back to the device, before what it is asked next. False: there is none.
  bool DropUnused() {
    std::list<RegionRef> dropped;  // not destroyed under the lock
    absl::MutexLock lock(&mutex_);
    dropped.swap(kept_);
    kept_bytes_ = 0;
    for (auto it = slabs_.begin(); it != slabs_.end();) {
      const auto slab = it++;
      if (slab->second.units.free_units() != kSlabUnits) continue;
      dropped.push_back(std::move(slab->second.region));
      slabs_.erase(slab);
    }
    return !dropped.empty();
  }
  Block TakeUnits(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto& [base, slab] : slabs_) {
      const uint32_t unit = slab.units.Allocate(UnitsOf(bytes));
      if (unit == Buddy::kNone) continue;
      return Block(slab.region, base + unit * kUnitBytes, bytes, static_cast<BlockOwner*>(this));
    }
    return Block();
  }
  Block TakeKept(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    for (auto it = kept_.begin(); it != kept_.end(); ++it) {
      if ((*it)->bytes() != LargeBytes(bytes)) continue;
      RegionRef region = std::move(*it);
      kept_.erase(it);
      kept_bytes_ -= region->bytes();
      return TakeWhole(std::move(region), bytes);
    }
    return Block();
  }
  Block TakeWhole(RegionRef region, size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    std::byte* const base = region->base();
    in_use_[base] = region;
    return Block(std::move(region), base, bytes, static_cast<BlockOwner*>(this));
  }

  const ::verbena::Device where_;
  absl::Mutex mutex_;  // never held while the device is asked
  std::map<std::byte*, Slab> slabs_ ABSL_GUARDED_BY(mutex_);
  std::map<std::byte*, RegionRef> in_use_ ABSL_GUARDED_BY(mutex_);  // large ones
  std::list<RegionRef> kept_ ABSL_GUARDED_BY(mutex_);               // longest kept first
  uint64_t kept_bytes_ ABSL_GUARDED_BY(mutex_) = 0;
};

DevicePool& PoolOf(::verbena::Device where) {
  static absl::Mutex mutex;
  static auto* const pools = new std::map<std::pair<int, int>, std::unique_ptr<DevicePool>>;
  absl::MutexLock lock(&mutex);
  std::unique_ptr<DevicePool>& pool = (*pools)[{static_cast<int>(where.kind()), where.index()}];
  if (pool == nullptr) pool = std::make_unique<DevicePool>(where);
  return *pool;
}

}  // namespace

absl::StatusOr<Block> AllocateDeviceBlock(::verbena::Device where, size_t bytes) {
  if (absl::StatusOr<Device*> device = FindDevice(where); !device.ok()) return device.status();
  return PoolOf(where).Allocate(bytes);
}

}  // namespace verbena::memory
