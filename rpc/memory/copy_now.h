#pragma once
// A copy that is done when the function returns.
#include <cstddef>

#include "absl/status/status.h"
#include "verbena/device.h"

namespace verbena::memory {

// Copies `bytes` from memory of the host, or of a device of the same kind, to memory of `to_device`
// (or of the host, then by the CPU).
// Blocks. NOT_FOUND: no such device; DATA_LOSS: a range faulted. Any thread.
absl::Status CopyNow(::verbena::Device to_device, std::byte* to, const std::byte* from,
                     size_t bytes);
// The other way.
absl::Status CopyToHostNow(::verbena::Device from_device, std::byte* to, const std::byte* from,
                           size_t bytes);

}  // namespace verbena::memory
