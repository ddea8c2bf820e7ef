#pragma once
// CudaDevice: one GPU as memory::Device. Its memory is found by what the driver says of an address,
// whoever allocated it; what it allocates itself can be exported to other processes.
//
// It is made without a context; the first method that needs one takes the GPU's primary context.
#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/gpu/context.h"
#include "rpc/gpu/copy_kernel.h"
#include "rpc/gpu/driver.h"
#include "rpc/gpu/pointer.h"
#include "rpc/gpu/readiness.h"
#include "rpc/memory/device.h"
#include "rpc/memory/nic_access.h"

namespace verbena::gpu {

class CudaDevice final : public memory::Device, public memory::NicAccess {
 public:
  // `driver` outlives it. INTERNAL, NOT_FOUND: no such GPU. Any thread; does not block for long.
  static absl::StatusOr<std::unique_ptr<CudaDevice>> Create(const Driver& driver, int ordinal);
  // Everything that was allocated or imported must be back.
  ~CudaDevice() override;

  ::verbena::Device where() const override { return ::verbena::Device::Cuda(ordinal_); }
  bool host_accessible() const override { return false; }
  absl::Status health() const override;
  std::array<std::byte, 16> hardware() const override { return uuid_; }

  // NOT_FOUND: not memory of this GPU (any more), which is named if it is another's. Several
  // extents where memory was mapped in parts. No context, no lock of the driver's: any thread.
  absl::StatusOr<std::vector<memory::Extent>> Describe(const void* pointer, size_t bytes) override;
  bool IsThere(const memory::Extent& extent) override;
  // kVmmDescriptor, kIpc, kDmaBuf, or kHostPeer for the first of them that a process can take.
  // NOT_FOUND: freed, or freed and allocated again, since it was described; FAILED_PRECONDITION: an
  // allocation of a kind that cannot be exported that way, said which; PERMISSION_DENIED: IPC is
  // off.
  absl::StatusOr<memory::Export> ExportTo(const memory::Extent& extent,
                                          memory::ExportWay way) override;
  // Of another process's GPU memory, for copies of this GPU's. UNIMPLEMENTED: this GPU does not
  // reach that one.
  absl::StatusOr<memory::Mapping> Import(memory::Export from_peer) override;
  void Release(const memory::Mapping& mapping) override;
  bool LockHost(const memory::Mapping& host, bool read_only) override;
  void UnlockHost(const memory::Mapping& host) override;
  // In the driver's units (2 MiB), exportable as a descriptor. RESOURCE_EXHAUSTED: the GPU is full.
  absl::StatusOr<memory::Extent> Allocate(size_t bytes) override;
  void Free(const memory::Extent& extent) override;
  std::unique_ptr<memory::CopyEngine> MakeCopyEngine() override;
  // The stream writes a word of page-locked memory when it gets there. Errors as StatusOf.
  // FAILED_PRECONDITION: the stream is being captured into a graph, and nothing is queued there.
  absl::StatusOr<memory::ReadinessRef> Record(memory::StreamOrder order) override;
  absl::Status CheckOrder(memory::StreamOrder order) const override;
  Path PathOf(const memory::CopyPiece& piece, Path mapped) const override;
  bool Wanders(const void* address) const override;

  // Asked once, when it was made.
  memory::NicFacts nic_facts() const override { return nic_facts_; }
  absl::Status FlushNicWrites() override;

  // ---- for this room
  const Driver& driver() const { return driver_; }
  PrimaryContext& context() { return context_; }
  // Loaded once this GPU has allocated or imported something.
  const CopyKernel& copy_kernel() const { return copy_kernel_; }
  // The addresses around `address` that a kernel of this GPU may read, or also write; none where
  // that is not known. A microsecond; any thread.
  struct Range {
    abi::Address begin = 0, end = 0;
  };
  Range KernelRange(abi::Address address, bool write) const;
  // The same within what this object allocated or imported; none of others.
  Range OwnRange(abi::Address address, bool write) const;
  // Asks the driver whether the GPU has failed, in its context. Microseconds. Any thread.
  absl::Status Probe();
  // Keeps the first error that stays; returns what StatusOf says of `result`.
  absl::Status Note(abi::Result result, absl::string_view what);

 private:
  struct Known {  // an allocation that was described
    uint64_t driver_id = 0;
    uint64_t buffer_id = 0;
    uint64_t used = 0;  // when it was described last
  };
  enum class Made : uint8_t { kAllocated, kMapped, kIpc };
  struct Own {  // what this object made: allocations and imports, by address
    Made made = Made::kAllocated;
    size_t bytes = 0;  // mapped
    int count = 0;     // a handle that is opened again is where it was
  };

  void AskNicFacts();
  CudaDevice(const Driver& driver, int ordinal) : driver_(driver), ordinal_(ordinal) {}
  uint64_t BufferIdOf(const PointerFacts& facts);
  void ForgetLongestUnused() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // In the context, current.
  void LoadKernel();
  absl::StatusOr<PointerFacts> FactsIfThere(const memory::Extent& extent);
  absl::Status ExportIpc(const memory::Extent& extent, const PointerFacts& facts,
                         memory::Export& into);
  absl::Status ExportDescriptor(const memory::Extent& extent, const PointerFacts& facts,
                                memory::Export& into);
  absl::Status ExportDmaBuf(const memory::Extent& extent, memory::Export& into);
  absl::StatusOr<abi::Address> ImportIpc(const memory::Export& from_peer);
  absl::StatusOr<abi::Address> ImportDescriptor(const memory::Export& from_peer);
  absl::StatusOr<abi::Address> MapHandle(abi::Handle handle, size_t bytes, int access);
  // Between this GPU and the one that `hardware` says.
  Path PathTo(const std::array<std::byte, 16>& hardware) const;
  void Unmap(abi::Address address, size_t bytes);
  void Remember(abi::Address address, Made made, size_t bytes);
  // One of its holders is gone.
  Own Forget(abi::Address address);

  const Driver& driver_;
  const int ordinal_;
  abi::Ordinal device_ = 0;
  std::array<std::byte, 16> uuid_{};
  size_t granularity_ = 0;
  memory::NicFacts nic_facts_;
  PrimaryContext context_{driver_, ordinal_};
  std::shared_ptr<ReadyWords> words_ = std::make_shared<ReadyWords>(driver_);

  abi::Stream probe_ ABSL_GUARDED_BY(probe_mutex_) = nullptr;  // nothing is ever queued on it
  absl::Mutex probe_mutex_;
  absl::Mutex kernel_mutex_;  // held while it is loaded
  CopyKernel copy_kernel_;
  mutable absl::Mutex mutex_;  // never held over a call of the driver
  std::map<abi::Address, Known> known_ ABSL_GUARDED_BY(mutex_);
  uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<abi::Address, Own> own_ ABSL_GUARDED_BY(mutex_);
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace verbena::gpu
