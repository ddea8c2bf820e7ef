#pragma once
// Slab: a memfd of the library's, mapped, faulted in, on huge pages where the kernel gives them.
// Sealed, so that a peer that maps it can rely on its size and cannot write to it.
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "rpc/memory/region.h"

namespace verbena::memory {

class Slab final : public Region {
 public:
  static constexpr uint64_t kAlignment = 2 << 20;  // of base and size: a huge page

  // `bytes` is rounded up to kAlignment. `node`: NUMA node to prefer, -1 = any. Blocks: about 1 s
  // per GiB on small pages, 0.1 s on huge ones. RESOURCE_EXHAUSTED: the system has not that much
  // memory (or descriptors).
  static absl::StatusOr<std::shared_ptr<Slab>> Create(uint64_t bytes, int node);
  // Unmaps. A peer that still maps it keeps the memory.
  ~Slab() override;

  bool huge_pages() const { return huge_pages_; }

 private:
  Slab(Extent extent, int fd);
  bool huge_pages_ = false;
};

}  // namespace verbena::memory
