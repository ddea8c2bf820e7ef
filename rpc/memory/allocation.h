#pragma once
// Memory allocated on a device other than the host: one region each, given back to the device when
// its last holder dies.
#include <cstddef>

#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

// `bytes` may be 0. Registered with every domain. May block: any thread but a reactor's. NOT_FOUND:
// no such device.
absl::StatusOr<RegionRef> AllocateOn(::verbena::Device where, size_t bytes);

}  // namespace verbena::memory
