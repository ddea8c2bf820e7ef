#pragma once
// The host as a memory::Device: memfds are exported, sealed ones imported, and the CPU copies.
#include <memory>
#include <vector>

#include "rpc/memory/device.h"

namespace verbena::memory {

class HostMemory final : public Device {
 public:
  ::verbena::Device where() const override { return ::verbena::Device::Host(); }
  bool host_accessible() const override { return true; }

  // One extent: the known region around the range, else the range itself with a new buffer_id.
  absl::StatusOr<std::vector<Extent>> Describe(const void* pointer, size_t bytes) override;
  // kMemfd: of a slab (its descriptor is duplicated). kProcess: of anything; the peer reads it with
  // process_vm_readv.
  absl::StatusOr<Export> ExportTo(const Extent& extent, ExportWay way) override;
  // kMemfd only, read-only. FAILED_PRECONDITION: not sealed against shrinking, so the
  // peer could make a copy raise SIGBUS; OUT_OF_RANGE: the extent lies outside the descriptor's
  // file.
  absl::StatusOr<Mapping> Import(Export from_peer) override;
  void Release(const Mapping& mapping) override;
  // Faults it in.
  void Populate(const Mapping& mapping, uint64_t offset, uint64_t bytes) override;
  // Anonymous pages. The pools are what to use instead.
  absl::StatusOr<Extent> Allocate(size_t bytes) override;
  void Free(const Extent& extent) override;

  std::unique_ptr<CopyEngine> MakeCopyEngine() override;
};

}  // namespace verbena::memory
