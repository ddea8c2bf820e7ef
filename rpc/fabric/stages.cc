#include "rpc/fabric/stages.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric {

Stages::Stages(uint32_t unit_bytes, uint32_t units)
    : unit_bytes_(unit_bytes),
      bytes_(size_t{unit_bytes} * units),
      block_(memory::TryAllocateBlock(bytes_)),
      free_(~0u >> (kUnitsMax - units)) {
  VERBENA_DCHECK(units > 0 && units <= kUnitsMax);
  taken_by_.fill(0);
  if (block_) return;
  heap_.reset(new std::byte[bytes_]);
  // Given back at once: the next ones find room. If there is none, these do.
  memory::PostToGrowth([bytes = bytes_] { memory::AllocateBlock(bytes).IgnoreError(); });
}

uint32_t Stages::Take(size_t bytes) {
  VERBENA_DCHECK(bytes <= bytes_, bytes, " of ", bytes_);
  if (taken_ == kCount) return kNone;
  const size_t units = std::max<size_t>((bytes + unit_bytes_ - 1) / unit_bytes_, 1);
  uint32_t begins = free_;  // of as many free ones
  for (size_t i = 1; i < units; ++i) begins &= free_ >> i;
  if (begins == 0) return kNone;
  const auto stage = static_cast<uint32_t>(std::countr_zero(begins));
  taken_by_[stage] = ~0u >> (kUnitsMax - units) << stage;
  free_ &= ~taken_by_[stage];
  ++taken_;
  return stage;
}

void Stages::Give(uint32_t stage) {
  VERBENA_DCHECK(stage < kUnitsMax && taken_by_[stage] != 0);
  free_ |= std::exchange(taken_by_[stage], 0);
  --taken_;
}

std::byte* Stages::At(uint32_t stage) {
  VERBENA_DCHECK(stage < kUnitsMax && taken_by_[stage] != 0);
  return (block_ ? block_.data() : heap_.get()) + stage * unit_bytes_;
}

}  // namespace verbena::fabric
