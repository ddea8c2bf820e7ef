#pragma once
// verbs::LeaseCopy: host memory that a lease of device memory is served from where the NIC cannot
// reach the device. A READ asks nobody, so there is no telling which part a reader wants next, and
// no stage can be refilled under it: the copy is of the whole lease, made before its key is told,
// by the device in pieces of which several are under way. That costs one copy's time before the
// first byte, and as much host memory as is leased, which is why there is a limit. Reactor thread
// only.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "rpc/base/ids.h"
#include "rpc/memory/region.h"

namespace verbena::fabric::verbs {

class LeaseCopy {
 public:
  // Of one copy that a device is asked for, and how many at once. A revocation waits for those.
  // Smaller, and what each costs to begin is seen; larger, and a revocation takes longer.
  static constexpr size_t kPieceBytes = 1 << 20;
  static constexpr uint32_t kPiecesAhead = 8;

  // `total`: of all that live, which outlives this.
  LeaseCopy(memory::RegionRef from, const std::byte* data, size_t bytes, uint64_t& total)
      : region(std::move(from)), source(data), size(bytes), total_(total) {
    total_ += size;
  }
  ~LeaseCopy() { total_ -= size; }
  LeaseCopy(const LeaseCopy&) = delete;
  LeaseCopy& operator=(const LeaseCopy&) = delete;

  const memory::RegionRef region;  // of the device
  const std::byte* const source;
  const size_t size;
  memory::Block block;       // once there is one
  size_t asked = 0;          // bytes whose copies were begun
  uint32_t under_way = 0;    // of those copies
  Error error = Error::kOk;  // nothing more is copied

 private:
  uint64_t& total_;
};

}  // namespace verbena::fabric::verbs
