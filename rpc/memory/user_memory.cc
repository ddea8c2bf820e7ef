#include "rpc/memory/user_memory.h"

#include <limits>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/registrars.h"

namespace verbena::memory {

absl::StatusOr<RegionRef> RegisterUserMemory(std::byte* data, size_t bytes, ::verbena::Device where,
                                             bool read_only) {
  const auto address = reinterpret_cast<uintptr_t>(data);
  if (data == nullptr || bytes == 0 || bytes > std::numeric_limits<uintptr_t>::max() - address) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot register ", bytes, " bytes at address 0x", absl::Hex(address)));
  }
  absl::StatusOr<Device*> device = FindDevice(where);
  if (!device.ok()) return device.status();
  RegionRef region = std::make_shared<Region>(**device, Extent{data, bytes, NextBufferId()},
                                              RegionKind::kRegistered, -1, 0);
  if (absl::Status s = AddKnownRegion(region); !s.ok()) return s;
  const uint8_t uses = static_cast<uint8_t>(static_cast<uint8_t>(Use::kLeasable) |
                                            (read_only ? 0 : static_cast<uint8_t>(Use::kReadInto)));
  absl::Status registered;
  RunOnSetup([&] { registered = RegisterRegion(region, uses); });
  if (!registered.ok()) {
    ForgetRegion(*region);
    return registered;
  }
  return region;
}

absl::Status UnregisterUserMemory(RegionRef& region) {
  long users = 0;
  if (!ForgetRegionIfUnused(region, &users)) {
    return absl::FailedPreconditionError(absl::StrCat(
        users, " buffers, leases or transfers still use the ", region->bytes(),
        " registered bytes at 0x", absl::Hex(reinterpret_cast<uintptr_t>(region->base()))));
  }
  absl::Status status;
  RunOnSetup([&] { status = UnregisterRegion(region->buffer_id()); });
  if (!status.ok()) {
    AddKnownRegion(region).IgnoreError();
    return status;
  }
  region.reset();
  return absl::OkStatus();
}

void KeepRegistered(RegionRef region) {
  static absl::Mutex mutex;
  static auto* const kept = new std::vector<RegionRef>;
  absl::MutexLock lock(&mutex);
  kept->push_back(std::move(region));
}

}  // namespace verbena::memory
