#pragma once
// FakeDevice: memory that the CPU may not touch, as a GPU's, on any machine, with streams
// (fake_stream.h) and copies that end when a test lets them. What users and fabrics see is a
// PROT_NONE range: whoever dereferences it crashes at that line. The bytes are behind a second
// mapping that only this device's CopyEngine and the tests' Read and Write know.
//
//   memory::FakeDevice& fake = memory::FakeDevice::Install(0);   // once per process and index
//   auto buffer = verbena::Buffer::Allocate(1 << 20, verbena::Device::Fake(0));
#include <array>
#include <atomic>
#include <cstddef>
#include <deque>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "rpc/memory/device.h"
#include "rpc/memory/nic_access.h"

namespace verbena::memory {

class FakeDevice final : public Device, public NicAccess {
 public:
  // Makes and registers Device::Fake(index), or returns the one that is there. Never destroyed. Any
  // thread.
  static FakeDevice& Install(int index = 0);

  ::verbena::Device where() const override { return where_; }
  bool host_accessible() const override { return false; }
  std::array<std::byte, 16> hardware() const override {
    return {std::byte{0xfa}, static_cast<std::byte>(where_.index())};
  }

  // NOT_FOUND: not memory of this device.
  absl::StatusOr<std::vector<Extent>> Describe(const void* pointer, size_t bytes) override;
  // kMemfd, and kDmaBuf where its NicFacts say so: the same descriptor.
  absl::StatusOr<Export> ExportTo(const Extent& extent, ExportWay way) override;
  absl::StatusOr<Mapping> Import(Export from_peer) override;
  void Release(const Mapping& mapping) override;
  absl::StatusOr<Extent> Allocate(size_t bytes) override;
  void Free(const Extent& extent) override;
  // Copies between this device, other fakes' imported memory and the host.
  std::unique_ptr<CopyEngine> MakeCopyEngine() override;
  // `order.stream` is a FakeStream.
  absl::StatusOr<ReadinessRef> Record(StreamOrder order) override;
  // Refuses what a GPU does: cudaStreamPerThread, which is 2.
  absl::Status CheckOrder(StreamOrder order) const override;
  absl::Status health() const override;
  // kDeviceCopy where an end is the host's.
  Path PathOf(const CopyPiece& piece, Path mapped) const override;

  NicFacts nic_facts() const override;
  absl::Status FlushNicWrites() override;
  bool Wanders(const void* address) const override { return address == wanders_.load(); }
  // For tests: what lies there wanders between it and the host. Any thread.
  void LetWander(const void* address) { wanders_.store(address); }
  // For tests: what it says of itself to NICs; and how often it was flushed. Any thread.
  void SetNicFacts(const NicFacts& facts);
  int flushes() const { return flushes_.load(); }

  // For tests: from now on only so many copies of the device's engines begin, until it is called
  // again; negative: all. Any thread.
  void LetCopies(int64_t count) { copies_.store(count); }
  // For tests: from now on the allocation at `base` is described as two, as memory is that was
  // mapped in parts; `at` is in bytes. Any thread.
  void Split(std::byte* base, size_t at);
  // For tests: as if it had been freed and the same addresses allocated again. Any thread.
  void Renumber(std::byte* base);
  // For tests: from now on it has no memory to allocate. OK: it has. Any thread.
  void RefuseAllocations(const absl::Status& why);
  // For tests: from now on it has room for so many bytes, with what is allocated and mapped. Any
  // thread.
  void LimitMemory(size_t bytes);
  // Of what is allocated and mapped. Any thread.
  size_t live_bytes();
  // For tests: from now on its memory is not exported, or what peers exported is not imported. OK:
  // it is again. Any thread.
  void RefuseExports(const absl::Status& why);
  void RefuseImports(const absl::Status& why);
  // Copies of the device's engines that have not begun. Any thread.
  int64_t waiting() const { return waiting_.load(); }
  void CountWaiting(int64_t more) { waiting_.fetch_add(more); }
  // For tests: the device has failed. Its copies end with an error, and what is not written by then
  // never is. Any thread.
  void Break(const absl::Status& why);
  // Whether a copy may begin; by the engines.
  bool TakeCopy();

  // For tests: what lies at a device address. A CHECK fails when it is none. Any thread.
  void Write(std::byte* to, const void* from, size_t bytes);
  void Read(void* to, const std::byte* from, size_t bytes);

  // Where the CPU finds [address, address + bytes); `address` itself when it is not of this device;
  // null when the range runs out of one of its extents, or was freed not long ago. Any thread.
  std::byte* Alias(const std::byte* address, size_t bytes);
  // Extents and mappings alive: leak checks.
  size_t live();

 private:
  struct Memory {
    size_t bytes = 0;  // as asked
    size_t mapped = 0;
    std::byte* alias = nullptr;
    int fd = -1;
    uint64_t buffer_id = 0;
    size_t split = 0;  // where the second part begins; 0 = there is one
    uint64_t second_id = 0;
  };
  explicit FakeDevice(int index) : where_(::verbena::Device::Fake(index)) {}
  absl::StatusOr<std::byte*> Map(int fd, uint64_t offset, size_t bytes, bool writable,
                                 uint64_t buffer_id);
  void Unmap(std::byte* base);
  size_t BytesNow() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Of which allocation it is, whole or one of two parts, and where in that; null: of none.
  const Memory* PartOf(const Extent& extent, uint64_t& offset) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  absl::StatusOr<Export> ExportDmaBuf(const Extent& extent);

  const ::verbena::Device where_;
  std::atomic<int64_t> copies_{-1};
  std::atomic<int64_t> waiting_{0};
  std::atomic<int> flushes_{0};
  std::atomic<const void*> wanders_{nullptr};
  mutable absl::Mutex mutex_;
  absl::Status health_ ABSL_GUARDED_BY(mutex_);
  NicFacts nic_facts_ ABSL_GUARDED_BY(mutex_) = {.pci = {}, .dma_buf = true};
  absl::Status no_exports_ ABSL_GUARDED_BY(mutex_), no_imports_ ABSL_GUARDED_BY(mutex_);
  absl::Status no_memory_ ABSL_GUARDED_BY(mutex_);
  size_t bytes_max_ ABSL_GUARDED_BY(mutex_) = SIZE_MAX;
  std::map<uintptr_t, Memory> memories_ ABSL_GUARDED_BY(mutex_);  // by user-visible address
  std::deque<std::pair<std::byte*, size_t>> freed_ ABSL_GUARDED_BY(mutex_);  // still PROT_NONE
};

}  // namespace verbena::memory
