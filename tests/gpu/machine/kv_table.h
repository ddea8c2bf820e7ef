#pragma once
// A KV cache's hand-over between two processes: 64 layers of 256 blocks of 64 KiB.
#include <cstddef>

#include "gpu.verbena.h"

namespace verbena::gpu_test {

struct KvTimes {
  double together_us = 0;    // layer by layer, into the rows of a block table
  double one_by_one_us = 0;  // a fetch for each block, those of a layer at once
};
constexpr size_t kKvBytes = size_t{1} << 30;

// From what the owner's last Give made, of kKvBytes, to scattered blocks of `to`; looks at every
// byte. A CHECK fails where something does.
KvTimes MeasureKv(const ::gpu_test::Owner::Stub& owner, int to, uint32_t seed);

}  // namespace verbena::gpu_test
