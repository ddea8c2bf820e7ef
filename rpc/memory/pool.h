#pragma once
// SlabPool: the library's host memory on one NUMA node. Slabs are made in growing steps and kept;
// what does not fit a common slab gets one of its own, which is kept for reuse when it is freed, so
// that a large tensor allocated again and again is faulted in once.
//
// Invariant: an allocation that finds room makes no system call. Slabs are made on the growth
// thread, registered and unmapped on the setup thread, which therefore never waits for growth.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rpc/memory/region.h"
#include "rpc/memory/slab_space.h"

namespace verbena::memory {

struct PoolOptions {
  int node = -1;           // NUMA node to prefer, -1 = any
  uint64_t bytes_max = 0;  // all slabs together; 0 = half of the machine's memory
  uint64_t kept_bytes_max = uint64_t{4}
                            << 30;       // free slabs of large blocks that are kept for reuse
  uint64_t first_slab_bytes = 16 << 20;  // powers of two; each further slab doubles
  uint64_t slab_bytes_max = 256 << 20;
  uint64_t large_bytes = 32 << 20;  // blocks above it get slabs of their own
};

class SlabPool {
 public:
  explicit SlabPool(const PoolOptions& options);
  // Every block must be back.
  ~SlabPool();
  SlabPool(const SlabPool&) = delete;
  SlabPool& operator=(const SlabPool&) = delete;

  // As AllocateBlock. Any thread.
  absl::StatusOr<Block> Allocate(size_t bytes);
  // Never grows, never blocks for longer than the lock: an empty Block when there is no room now.
  // Any thread.
  Block TryAllocate(size_t bytes);
  // Makes slabs until `bytes` of common pages are free: call it before the first message. May
  // block.
  absl::Status Reserve(uint64_t bytes);

  struct Stats {
    uint64_t slab_bytes = 0;  // mapped and faulted in, or about to be
    uint64_t used_bytes = 0;  // in blocks, rounded as they are allocated
    uint64_t kept_bytes = 0;  // free slabs of large blocks
    uint64_t slabs_made = 0;  // ever
    uint64_t huge_bytes = 0;  // of slab_bytes
  };
  Stats stats() const;

 private:
  friend class SlabSpace;
  class Large;
  class Turn;

  void Give(SlabSpace& space, std::byte* data, size_t bytes) noexcept;
  void GiveLarge(Large& large) noexcept;
  Block TryAllocateLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  Block TakeKeptLocked(size_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Block> Grow(size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::StatusOr<std::shared_ptr<Slab>> MakeSlab(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status AddCommonSlab(uint64_t block_bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  absl::Status ReserveNow(uint64_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // Moves kept slabs, the longest kept first, to `dropped` until at most `bytes_max` of them are
  // left.
  void ShrinkKeptLocked(uint64_t bytes_max, std::vector<std::unique_ptr<Large>>& dropped)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Unmap(std::vector<std::unique_ptr<Large>> dropped) ABSL_LOCKS_EXCLUDED(mutex_);

  const PoolOptions options_;
  mutable absl::Mutex mutex_;                // never held over a system call
  int growing_ ABSL_GUARDED_BY(mutex_) = 0;  // threads that make slabs, see Turn
  std::vector<std::unique_ptr<SlabSpace>> spaces_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Large>> in_use_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<Large>> kept_ ABSL_GUARDED_BY(mutex_);  // longest kept first
  Stats stats_ ABSL_GUARDED_BY(mutex_);
};

// The pool of this thread's NUMA node; made at its first use, never destroyed. Any thread.
SlabPool& PoolHere();
// The pool of one node; of node 0 when there is no such node.
SlabPool& PoolOfNode(int node);

// What all pools of the process may hold together, each node's an equal part; 0 = half of the
// machine's memory. Without it the environment's VERBENA_MEMORY_BYTES_MAX holds.
// FAILED_PRECONDITION: there are pools already. Any thread.
absl::Status SetPoolBytesMax(uint64_t bytes);
// As it is now, in bytes of all nodes together. Any thread.
uint64_t PoolBytesMax();

// AllocateBlock for threads that must not block: a reactor. Empty when the pool would have to grow;
// let the growth thread call AllocateBlock then.
Block TryAllocateBlock(size_t bytes);

}  // namespace verbena::memory
