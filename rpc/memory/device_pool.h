#pragma once
// The library's memory on devices other than the host: blocks cut out of slabs, so that a tensor is
// had without asking the device, and peers import a slab once and not each tensor. What does not
// fit a slab is a region of its own, kept for reuse when it is freed.
//
// A block that is freed may be given to the next at once: work that was queued on a device's
// streams must not use it any more.
#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

// A slab. Larger, and a process that needs little keeps more from others; smaller, and more blocks
// are regions of their own.
inline constexpr uint64_t kDeviceSlabBytes = 64 << 20;
// Blocks above it are regions of their own.
inline constexpr uint64_t kDeviceLargeBytes = kDeviceSlabBytes / 4;
// Of each device: regions of large blocks that are kept when nobody uses them. Less, and what is
// fetched again and again is allocated again and again, for milliseconds per GiB.
inline constexpr uint64_t kDeviceKeptBytesMax = uint64_t{2} << 30;

// 64-byte aligned, 4 KiB from 4 KiB up; `bytes` may be 0. NOT_FOUND: no such device;
// RESOURCE_EXHAUSTED: it has no memory left, even without what is kept here, which then goes back
// to it. Any thread; may block when the device is asked: not a reactor, where NoGrowth refuses.
absl::StatusOr<Block> AllocateDeviceBlock(::verbena::Device where, size_t bytes);

}  // namespace verbena::memory
