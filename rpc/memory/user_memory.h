#pragma once
// Memory that users own: explicit registrations, and allocations on devices other than the host.
#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

// What verbena::RegisterMemory promises. Whoever holds the result unregisters it. May block.
absl::StatusOr<RegionRef> RegisterUserMemory(std::byte* data, size_t bytes, ::verbena::Device where,
                                             bool read_only);
// Resets `region` when it succeeds. FAILED_PRECONDITION says what uses it. May block.
absl::Status UnregisterUserMemory(RegionRef& region);
// For a registration that could not be undone before its handle died: keeps it for ever.
void KeepRegistered(RegionRef region);

}  // namespace verbena::memory
