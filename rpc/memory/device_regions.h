#pragma once
// Regions of memory on devices that users allocated: one for each allocation, whatever tensors lie
// in it, found by what the device says of an address and kept while the allocation is the same; so
// a peer imports an allocation once and not once per tensor. Not the owner of the memory: the
// region of one that was freed goes, and with it what peers and NICs have of it, when the next one
// is made at the latest.
#include <cstddef>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

// Allocations whose regions are kept when nobody uses them. More, and the one that was used longest
// ago is forgotten: peers let go of it, and import it again when it is sent again, for
// milliseconds.
inline constexpr size_t kDeviceRegionsMax = 1024;

// The regions, in order, that [data, data + bytes) of `device` lies in: one, or several where
// memory was mapped in parts. As Device::Describe, which must not block. Any thread.
absl::StatusOr<std::vector<RegionRef>> DeviceRegions(Device& device, const std::byte* data,
                                                     size_t bytes);

// One region over all of them, for memory that is sent as one. No process can be given it as one:
// either each of its parts is leased, or it goes by way of stages.
RegionRef JoinRegions(std::vector<RegionRef> parts);
// In order, while `region` lives; empty where it was not joined. Any thread.
absl::Span<const RegionRef> PartsOf(const Region& region);

// As the region's device describes it, for what is asked of that: several regions may be of one
// allocation, each with a number of its own. Any thread.
Extent ExtentOf(const Region& region);

// Whether memory that a user allocated is what it was when the region was made: neither freed, nor
// freed and allocated again. Of other memory that is so. A microsecond. Any thread.
bool StillThere(const Region& region);

}  // namespace verbena::memory
