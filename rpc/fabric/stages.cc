#include "rpc/fabric/stages.h"

#include <bit>

#include "rpc/base/check.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric {

Stages::Stages(uint32_t stage_bytes)
    : stage_bytes_(stage_bytes), block_(memory::TryAllocateBlock(kCount * stage_bytes_)) {
  if (block_) return;
  const size_t bytes = kCount * stage_bytes_;
  heap_.reset(new std::byte[bytes]);
  // Given back at once: the next ones find room. If there is none, these do.
  memory::PostToGrowth([bytes] { memory::AllocateBlock(bytes).IgnoreError(); });
}

uint32_t Stages::Take() {
  if (free_ == 0) return kNone;
  const auto stage = static_cast<uint32_t>(std::countr_zero(free_));
  free_ &= free_ - 1;
  return stage;
}

std::byte* Stages::At(uint32_t stage) {
  VERBENA_DCHECK(stage < kCount && (free_ & (1u << stage)) == 0);
  return (block_ ? block_.data() : heap_.get()) + stage * stage_bytes_;
}

}  // namespace verbena::fabric
