// CudaDevice: memory that it makes, exports and imports. Setup thread only.
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/gpu/cuda_device.h"
#include "rpc/memory/known_regions.h"

namespace verbena::gpu {
namespace {

using memory::Export;
using memory::ExportWay;

// What a dma-buf descriptor's range begins and ends on.
constexpr abi::Address kPageBytes = 4096;

const char* NameOf(MemoryKind kind) {
  switch (kind) {
    case MemoryKind::kMalloc:
      return "cudaMalloc memory";
    case MemoryKind::kPool:
      return "memory of a stream-ordered pool (cudaMallocAsync)";
    case MemoryKind::kVirtual:
      return "memory of cuMemCreate without a POSIX descriptor";
    case MemoryKind::kManaged:
      return "managed memory (cudaMallocManaged)";
  }
  return "memory";
}

absl::Status NotExportable(const PointerFacts& facts) {
  return absl::FailedPreconditionError(
      absl::StrCat("cuda:", facts.ordinal, ": ", NameOf(facts.kind),
                   " cannot be exported to another process that way"));
}

}  // namespace

absl::StatusOr<PointerFacts> CudaDevice::FactsIfThere(const memory::Extent& extent) {
  const auto base = reinterpret_cast<abi::Address>(extent.base);
  absl::StatusOr<PointerFacts> facts = FactsOf(driver_, base);
  if (!facts.ok()) return facts.status();
  const bool own = [&] {
    absl::MutexLock lock(&mutex_);
    return own_.contains(base);
  }();
  // What this object allocated has its own number, and is not freed under it.
  if (own || (facts->base == base && BufferIdOf(*facts) == extent.buffer_id)) return facts;
  return absl::NotFoundError(absl::StrCat("cuda:", ordinal_, ": the ", extent.bytes, " bytes at 0x",
                                          absl::Hex(base), " were freed and allocated again"));
}

absl::StatusOr<Export> CudaDevice::ExportTo(const memory::Extent& extent, ExportWay way) {
  const absl::StatusOr<PointerFacts> facts = FactsIfThere(extent);
  if (!facts.ok()) return facts.status();
  if (facts->kind == MemoryKind::kManaged) return NotExportable(*facts);
  absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return context.status();
  const InContext in(driver_, *context);
  if (in.result() != abi::kSuccess) return Note(in.result(), "entering its context");
  if (way == ExportWay::kHostPeer) {
    // A descriptor holds the memory for as long as the peer maps it; a handle holds nothing.
    way = facts->kind == MemoryKind::kVirtual ? ExportWay::kVmmDescriptor : ExportWay::kIpc;
  }
  Export made;
  made.way = way;
  made.bytes = extent.bytes;
  made.buffer_id = extent.buffer_id;
  made.hardware = uuid_;
  absl::Status status;
  if (way == ExportWay::kVmmDescriptor) {
    status = ExportDescriptor(extent, *facts, made);
  } else if (way == ExportWay::kIpc) {
    status = ExportIpc(extent, *facts, made);
  } else if (way == ExportWay::kDmaBuf) {
    status = ExportDmaBuf(extent, made);
  } else {
    status = absl::UnimplementedError("a GPU exports no memfd");
  }
  if (!status.ok()) return status;
  return made;
}

absl::Status CudaDevice::ExportDescriptor(const memory::Extent& extent, const PointerFacts& facts,
                                          Export& into) {
  if (!facts.descriptor) return NotExportable(facts);
  abi::Handle handle = 0;
  abi::Result r = driver_.cuMemRetainAllocationHandle(&handle, extent.base);
  if (r != abi::kSuccess) return Note(r, "finding the physical memory of a mapping");
  r = driver_.cuMemExportToShareableHandle(&into.fd, handle, abi::kHandleTypePosix, 0);
  driver_.cuMemRelease(handle);
  into.bytes = facts.bytes;
  return Note(r, "exporting a descriptor");
}

absl::Status CudaDevice::ExportIpc(const memory::Extent& extent, const PointerFacts& facts,
                                   Export& into) {
  if (!facts.ipc) return NotExportable(facts);
  abi::IpcHandle handle;
  const abi::Result r =
      driver_.cuIpcGetMemHandle(&handle, reinterpret_cast<abi::Address>(extent.base));
  static_assert(sizeof handle.bytes == sizeof into.handle);
  std::copy(std::begin(handle.bytes), std::end(handle.bytes), into.handle.begin());
  return Note(r, "exporting an IPC handle");
}

absl::Status CudaDevice::ExportDmaBuf(const memory::Extent& extent, Export& into) {
  if (driver_.cuMemGetHandleForAddressRange == nullptr) {
    return absl::UnimplementedError("cuda: this driver exports no dma-buf; 11.7 or later does");
  }
  const auto base = reinterpret_cast<abi::Address>(extent.base);
  const abi::Address begin = base / kPageBytes * kPageBytes;
  const abi::Address end = (base + extent.bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
  into.offset = base - begin;
  return Note(
      driver_.cuMemGetHandleForAddressRange(&into.fd, begin, end - begin, abi::kRangeDmaBuf, 0),
      "exporting a dma-buf");
}

absl::StatusOr<memory::Mapping> CudaDevice::Import(Export from_peer) {
  const absl::Cleanup close_descriptor = [&] {
    if (from_peer.fd >= 0) close(from_peer.fd);
  };
  absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return context.status();
  const InContext in(driver_, *context);
  if (in.result() != abi::kSuccess) return Note(in.result(), "entering its context");
  absl::StatusOr<abi::Address> base =
      absl::FailedPreconditionError("not an export of a GPU's memory");
  if (from_peer.way == ExportWay::kIpc && from_peer.bytes != 0) base = ImportIpc(from_peer);
  if (from_peer.way == ExportWay::kVmmDescriptor) base = ImportDescriptor(from_peer);
  if (!base.ok()) return base.status();
  LoadKernel();
  return memory::Mapping{this, reinterpret_cast<std::byte*>(*base), from_peer.bytes,
                         PathTo(from_peer.hardware)};
}

// Before it is needed: the driver loads code only while nothing else runs in the context, and later
// a stream of the user's may stand still for the very bytes that the kernel is to bring.
void CudaDevice::LoadKernel() {
  absl::MutexLock lock(&kernel_mutex_);
  if (absl::Status kernel = copy_kernel_.Load(driver_); !kernel.ok()) {
    VERBENA_LOG(kWarning, "cuda:", ordinal_, ": small copies go one by one: ", kernel.message());
  }
}

absl::StatusOr<abi::Address> CudaDevice::ImportIpc(const Export& from_peer) {
  abi::IpcHandle handle;
  std::copy(from_peer.handle.begin(), from_peer.handle.end(), std::begin(handle.bytes));
  abi::Address base = 0;
  const abi::Result r = driver_.cuIpcOpenMemHandle_v2(&base, handle, abi::kIpcLazyPeerAccess);
  if (r != abi::kSuccess) return Note(r, "opening a peer's IPC handle");
  // The peer says how long it is; the driver knows.
  const absl::StatusOr<PointerFacts> facts = FactsOf(driver_, base);
  if (!facts.ok() || facts->base != base || facts->bytes < from_peer.bytes) {
    driver_.cuIpcCloseMemHandle(base);
    return absl::OutOfRangeError(
        absl::StrCat("cuda: a peer's IPC handle does not hold ", from_peer.bytes, " bytes"));
  }
  Remember(base, Made::kIpc, from_peer.bytes);
  return base;
}

absl::StatusOr<abi::Address> CudaDevice::ImportDescriptor(const Export& from_peer) {
  if (granularity_ == 0 || from_peer.bytes == 0 || from_peer.bytes % granularity_ != 0 ||
      from_peer.offset != 0) {
    return absl::OutOfRangeError(absl::StrCat("cuda: an import of ", from_peer.bytes,
                                              " bytes is not of whole units of ", granularity_));
  }
  abi::Handle handle = 0;
  const abi::Result r = driver_.cuMemImportFromShareableHandle(
      &handle, reinterpret_cast<void*>(static_cast<intptr_t>(from_peer.fd)), abi::kHandleTypePosix);
  if (r != abi::kSuccess) return Note(r, "importing a peer's descriptor");
  absl::StatusOr<abi::Address> base = MapHandle(handle, from_peer.bytes, abi::kAccessRead);
  driver_.cuMemRelease(handle);  // the mapping holds it
  if (base.ok()) Remember(*base, Made::kMapped, from_peer.bytes);
  return base;
}

absl::StatusOr<abi::Address> CudaDevice::MapHandle(abi::Handle handle, size_t bytes, int access) {
  abi::Address base = 0;
  abi::Result r = driver_.cuMemAddressReserve(&base, bytes, 0, 0, 0);
  if (r != abi::kSuccess) return Note(r, "reserving addresses");
  r = driver_.cuMemMap(base, bytes, 0, handle, 0);
  if (r != abi::kSuccess) {
    driver_.cuMemAddressFree(base, bytes);
    return Note(r, "mapping memory");
  }
  abi::AccessDescription who;
  who.location.id = device_;
  who.flags = access;
  r = driver_.cuMemSetAccess(base, bytes, &who, 1);
  if (r != abi::kSuccess) {
    Unmap(base, bytes);
    return Note(r, "giving this GPU access to memory");
  }
  return base;
}

void CudaDevice::Unmap(abi::Address address, size_t bytes) {
  driver_.cuMemUnmap(address, bytes);
  driver_.cuMemAddressFree(address, bytes);
}

void CudaDevice::Release(const memory::Mapping& mapping) {
  Free(memory::Extent{mapping.base, mapping.bytes, 0});
}

absl::StatusOr<memory::Extent> CudaDevice::Allocate(size_t bytes) {
  if (granularity_ == 0) {
    return absl::UnimplementedError(
        absl::StrCat("cuda:", ordinal_, " has no virtual memory management: wrap your own memory"));
  }
  if (bytes == 0 || bytes > SIZE_MAX - granularity_) {
    return absl::ResourceExhaustedError(absl::StrCat("cuda:", ordinal_, ": ", bytes, " bytes"));
  }
  absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return context.status();
  const InContext in(driver_, *context);
  if (in.result() != abi::kSuccess) return Note(in.result(), "entering its context");
  LoadKernel();
  const size_t mapped = (bytes + granularity_ - 1) / granularity_ * granularity_;
  abi::AllocationProperties how;
  how.handle_types = abi::kHandleTypePosix;
  how.location.id = device_;
  int rdma = 0;
  driver_.cuDeviceGetAttribute(&rdma, abi::DeviceAttribute::kGpuDirectRdma, device_);
  how.flags.gpu_direct_rdma = rdma != 0 ? 1 : 0;
  abi::Handle handle = 0;
  const abi::Result r = driver_.cuMemCreate(&handle, mapped, &how, 0);
  if (r != abi::kSuccess) return Note(r, absl::StrCat("allocating ", bytes, " bytes"));
  const absl::StatusOr<abi::Address> base = MapHandle(handle, mapped, abi::kAccessReadWrite);
  driver_.cuMemRelease(handle);
  if (!base.ok()) return base.status();
  Remember(*base, Made::kAllocated, mapped);
  return memory::Extent{reinterpret_cast<std::byte*>(*base), bytes, memory::NextBufferId()};
}

bool CudaDevice::LockHost(const memory::Mapping& host, bool read_only) {
  const absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return false;
  const InContext in(driver_, *context);
  if (in.result() != abi::kSuccess) return false;
  const abi::Result r = driver_.cuMemHostRegister_v2(
      host.base, host.bytes,
      abi::kHostRegisterPortable | (read_only ? abi::kHostRegisterReadOnly : 0));
  if (r == abi::kSuccess) return true;
  const absl::Status why = Note(r, absl::StrCat("page-locking ", host.bytes, " bytes"));
  // Else its owner, or another GPU of this process, has done it.
  if (r != abi::kHostMemoryAlreadyRegistered) VERBENA_LOG(kWarning, why.message());
  return false;
}

void CudaDevice::UnlockHost(const memory::Mapping& host) {
  const absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return;
  const InContext in(driver_, *context);
  // Nobody can do anything about an error: the context is broken, and holds nothing any more.
  driver_.cuMemHostUnregister(host.base);
}

void CudaDevice::Free(const memory::Extent& extent) {
  const auto base = reinterpret_cast<abi::Address>(extent.base);
  const Own own = Forget(base);
  const absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return;
  const InContext in(driver_, *context);
  if (own.made == Made::kIpc) {
    driver_.cuIpcCloseMemHandle(base);
  } else {
    Unmap(base, own.bytes);
  }
}

}  // namespace verbena::gpu
