// The process's pools, one per NUMA node.
#include <vector>

#include "rpc/memory/machine.h"
#include "rpc/memory/pool.h"

namespace verbena::memory {
namespace {

struct Pools {
  Pools() {
    const int nodes = NumaNodes();
    for (int node = 0; node < nodes; ++node) {
      PoolOptions options;
      options.node = nodes > 1 ? node : -1;
      options.bytes_max = MachineMemoryBytes() / 2 / static_cast<uint64_t>(nodes);
      pools.push_back(new SlabPool(options));
    }
  }
  std::vector<SlabPool*> pools;
};

// Never destroyed: blocks may outlive main.
const Pools& AllPools() {
  static const Pools* const pools = new Pools;
  return *pools;
}

}  // namespace

SlabPool& PoolOfNode(int node) {
  const std::vector<SlabPool*>& pools = AllPools().pools;
  return *pools[node >= 0 && static_cast<size_t>(node) < pools.size() ? static_cast<size_t>(node)
                                                                      : 0];
}

SlabPool& PoolHere() {
  const std::vector<SlabPool*>& pools = AllPools().pools;
  return pools.size() == 1 ? *pools[0] : PoolOfNode(NumaNodeHere());
}

absl::StatusOr<Block> AllocateBlock(size_t bytes) { return PoolHere().Allocate(bytes); }
Block TryAllocateBlock(size_t bytes) { return PoolHere().TryAllocate(bytes); }

}  // namespace verbena::memory
