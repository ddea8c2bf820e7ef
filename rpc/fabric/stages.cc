#include "rpc/fabric/stages.h"

#include <bit>

#include "rpc/base/check.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric {
namespace {

constexpr size_t kBytes = size_t{Stages::kCount} * Stages::kBytesMax;

}  // namespace

Stages::Stages() : block_(memory::TryAllocateBlock(kBytes)) {
  if (block_) return;
  heap_.reset(new std::byte[kBytes]);
  // Given back at once: the next ones find room. If there is none, these do.
  memory::PostToGrowth([] { memory::AllocateBlock(kBytes).IgnoreError(); });
}

uint32_t Stages::Take() {
  if (free_ == 0) return kNone;
  const auto stage = static_cast<uint32_t>(std::countr_zero(free_));
  free_ &= free_ - 1;
  return stage;
}

std::byte* Stages::At(uint32_t stage) {
  VERBENA_DCHECK(stage < kCount && (free_ & (1u << stage)) == 0);
  return (block_ ? block_.data() : heap_.get()) + size_t{stage} * kBytesMax;
}

}  // namespace verbena::fabric
