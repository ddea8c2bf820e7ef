#pragma once
// Which region an address belongs to: slabs, registrations of users, allocations on devices. Not
// the owner of any.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

// Never given twice in this process; not 0.
uint64_t NextBufferId();

// Any thread. ALREADY_EXISTS names the known range that it overlaps.
absl::Status AddKnownRegion(const RegionRef& region);
// Any thread; also when it is not known (any more).
void ForgetRegion(const Region& region);
// Forgets it if nobody but `region` holds it; else says how many do.
bool ForgetRegionIfUnused(const RegionRef& region, long* users);
// The known region that holds all of [data, data + bytes), or null. Any thread.
RegionRef FindKnownRegion(const void* data, size_t bytes, ::verbena::Device where);
std::vector<RegionRef> KnownRegions();

// As FindKnownRegion, else a kForeign region: a new one of exactly that range, or, of a device
// whose memory the host cannot touch, the one of the allocation that it lies in (device_regions.h).
// NOT_FOUND: no such device, or not its memory; UNIMPLEMENTED: memory mapped in parts. Any thread.
absl::StatusOr<RegionRef> RegionFor(std::byte* data, size_t bytes, ::verbena::Device where);

}  // namespace verbena::memory
