#pragma once
// A copy whose stores go past the caches: for transfers so large that what is written is not read
// back from a cache anyway. Saves reading the destination first, and leaves the caches to others.
#include <cstddef>
#include <cstdint>

namespace verbena::memory {

// Transfers of at least so many bytes are copied faster so. Half of the last-level cache, and not
// above 8 MiB: virtual machines report a whole socket's cache (260 MiB on one with two cores) and
// have a share of it. UINT64_MAX: this CPU has no such stores. Measured with benchmarks/micro/copy.
uint64_t StreamingThresholdBytes();

// As memcpy. Call StreamingFence before another thread or process is told. Any thread.
void StreamingCopy(std::byte* to, const std::byte* from, size_t bytes);
void StreamingFence();

}  // namespace verbena::memory
