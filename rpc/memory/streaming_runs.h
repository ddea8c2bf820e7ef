#pragma once
// Tells which copies are parts of a transfer that is worth streaming past the caches. A transfer
// arrives as many pieces whose destinations adjoin; it is streamed when all of it, as far as it is
// known, is large. Not thread-safe.
#include <array>
#include <cstddef>
#include <cstdint>

#include "rpc/memory/streaming_copy.h"

namespace verbena::memory {

class StreamingRuns {
 public:
  // `bytes` go to memory that begins at `first` and ends at `end`. Which transfer that belongs to.
  uint32_t Add(const std::byte* first, const std::byte* end, uint64_t bytes) {
    uint32_t run = 0;
    while (run < kRuns && (bytes < kPieceBytesMin || runs_[run].end != first)) ++run;
    if (run == kRuns) {
      run = next_++ % kRuns;
      runs_[run].bytes = 0;
    }
    runs_[run].end = end;
    runs_[run].bytes += bytes;
    return run;
  }
  bool Streams(uint32_t run) const { return runs_[run].bytes >= from_bytes_; }

 private:
  struct Run {
    const std::byte* end = nullptr;
    uint64_t bytes = 0;
  };
  // Transfers told apart at once; more are copied through the caches.
  static constexpr uint32_t kRuns = 8;
  // A smaller copy is a transfer of its own: small results that happen to adjoin are read soon,
  // from a cache.
  static constexpr uint64_t kPieceBytesMin = 64 << 10;

  const uint64_t from_bytes_ = StreamingThresholdBytes();
  std::array<Run, kRuns> runs_;
  uint32_t next_ = 0;
};

}  // namespace verbena::memory
