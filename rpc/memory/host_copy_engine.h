#pragma once
// The CPU as a CopyEngine, one per reactor: a ring of copies, worked off in order, a few KiB at a
// time between two looks at whatever else the reactor has to do.
#include <array>
#include <cstdint>
#include <vector>

#include "rpc/base/limits.h"
#include "rpc/memory/device.h"
#include "rpc/memory/streaming_copy.h"

namespace verbena::memory {

class HostCopyEngine : public CopyEngine {
 public:
  HostCopyEngine() = default;
  bool Copy(uint64_t tag, absl::Span<const CopyPiece> pieces, StreamOrder order) override;
  bool Poll(size_t budget_bytes, absl::FunctionRef<bool()> yield,
            absl::FunctionRef<void(uint64_t tag, bool ok)> done) override;

 private:
  // A transfer arrives as many copies whose destinations adjoin. It is streamed past the caches
  // when all of it, as far as it is known, is large.
  struct Run {
    const std::byte* end = nullptr;
    uint64_t bytes = 0;
  };
  struct Queued {
    uint64_t tag = 0;
    std::vector<CopyPiece> pieces;  // keeps its capacity
    uint32_t run = 0;
    bool valid = true;
  };
  static constexpr uint32_t kRuns =
      8;  // transfers told apart at once; more are copied through the caches

  uint32_t RunOf(absl::Span<const CopyPiece> pieces);
  Queued& Front() { return ring_[first_ % limits::kCopiesInFlightMax]; }
  // Copies one step of the front copy, within the budget; returns how many bytes.
  size_t Step(size_t budget_bytes);
  void PopFront(absl::FunctionRef<void(uint64_t, bool)> done);

  const uint64_t streaming_from_bytes_ = StreamingThresholdBytes();
  std::array<Queued, limits::kCopiesInFlightMax> ring_;
  uint64_t first_ = 0, last_ = 0;  // [first_, last_) of the ring are queued
  size_t piece_ = 0;               // where the front copy stands
  size_t piece_offset_ = 0;
  bool streamed_ = false;  // the front copy needs a fence
  std::array<Run, kRuns> runs_;
  uint32_t next_run_ = 0;
};

}  // namespace verbena::memory
