// The process's pools, one per NUMA node.
#include <cstdlib>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/log.h"
#include "rpc/memory/machine.h"
#include "rpc/memory/pool.h"

namespace verbena::memory {
namespace {

// A slab of common blocks at least, on each node.
constexpr uint64_t kBytesMin = 32 << 20;

struct Limit {
  absl::Mutex mutex;
  uint64_t bytes_max ABSL_GUARDED_BY(mutex) = 0;
  bool used ABSL_GUARDED_BY(mutex) = false;
};
Limit& TheLimit() {
  static Limit* const limit = new Limit;
  return *limit;
}

uint64_t FromEnvironment() {
  const char* const text = std::getenv("VERBENA_MEMORY_BYTES_MAX");
  uint64_t bytes = 0;
  if (text == nullptr || (absl::SimpleAtoi(text, &bytes) && bytes >= kBytesMin)) return bytes;
  VERBENA_LOG(kWarning, "VERBENA_MEMORY_BYTES_MAX=", absl::CHexEscape(text), " is not used: it is ",
              "a number of bytes, such as 2147483648, at least ", kBytesMin);
  return 0;
}

uint64_t LimitOf(uint64_t set) {
  const uint64_t bytes = set != 0 ? set : FromEnvironment();
  return bytes == 0 ? MachineMemoryBytes() / 2 : bytes;
}

uint64_t TakeLimit() {
  absl::MutexLock lock(&TheLimit().mutex);
  TheLimit().used = true;
  return LimitOf(TheLimit().bytes_max);
}

struct Pools {
  Pools() {
    const int nodes = NumaNodes();
    const uint64_t bytes_max = TakeLimit();
    for (int node = 0; node < nodes; ++node) {
      PoolOptions options;
      options.node = nodes > 1 ? node : -1;
      options.bytes_max = bytes_max / static_cast<uint64_t>(nodes);
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

uint64_t PoolBytesMax() {
  absl::MutexLock lock(&TheLimit().mutex);
  return LimitOf(TheLimit().bytes_max);
}

absl::Status SetPoolBytesMax(uint64_t bytes) {
  if (bytes != 0 && bytes < kBytesMin) {
    return absl::InvalidArgumentError(
        absl::StrCat("a limit of ", bytes, " bytes for all memory; at least ", kBytesMin));
  }
  absl::MutexLock lock(&TheLimit().mutex);
  if (TheLimit().used) {
    return absl::FailedPreconditionError("memory was allocated before its limit was set");
  }
  TheLimit().bytes_max = bytes;
  return absl::OkStatus();
}

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
