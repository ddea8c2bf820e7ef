// How the fake driver's memory goes to other processes, which are this one, and to NICs.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cstring>

#include "rpc/base/check.h"
#include "tests/gpu/fake_driver_calls.h"

namespace verbena::gpu::fake {
namespace {

// The handle is the alias, the length and the GPU: one process is enough for these tests.
Result IpcGetMemHandle(abi::IpcHandle* handle, Address pointer) {
  FAKE_CALL(cuIpcGetMemHandle)
  const FakeDriver::Memory* const m = the->Find(pointer);
  if (m == nullptr || m->kind != MemoryKind::kMalloc) return abi::kInvalidValue;
  std::memset(handle, 0, sizeof *handle);
  std::memcpy(handle->bytes, m, sizeof *m);
  static_assert(sizeof *m <= sizeof *handle);
  return abi::kSuccess;
}
Result IpcOpenMemHandle(Address* pointer, abi::IpcHandle handle, unsigned flags) {
  FAKE_CALL(cuIpcOpenMemHandle_v2)
  if (!the->InContext() || flags != abi::kIpcLazyPeerAccess) return abi::kInvalidContext;
  FakeDriver::Memory m;
  std::memcpy(static_cast<void*>(&m), handle.bytes, sizeof m);
  if (m.alias == nullptr) return abi::kInvalidValue;
  if (!the->peers && m.gpu != GpuOf(current.back())) return abi::kPeerAccessUnsupported;
  for (auto& [base, known] : the->memories_) {
    if (!known.imported || known.alias != m.alias) continue;
    ++known.opened;  // it is where it was
    *pointer = base;
    return abi::kSuccess;
  }
  m.imported = true;
  m.opened = 1;
  *pointer = the->Add(m);
  return abi::kSuccess;
}
Result IpcCloseMemHandle(Address pointer) {
  FAKE_CALL(cuIpcCloseMemHandle)
  const auto it = the->memories_.find(pointer);
  VERBENA_CHECK(it != the->memories_.end() && it->second.imported);
  if (--it->second.opened > 0) return abi::kSuccess;
  munmap(reinterpret_cast<void*>(pointer), Pages(it->second.bytes));
  the->memories_.erase(it);
  return abi::kSuccess;
}

Result MemExport(void* shareable, abi::Handle handle, int type, unsigned long long) {
  FAKE_CALL(cuMemExportToShareableHandle)
  const FakeDriver::Physical& physical = the->handles_.at(handle);
  if (type != abi::kHandleTypePosix || !physical.descriptor) return abi::kInvalidValue;
  *static_cast<int*>(shareable) = fcntl(physical.fd, F_DUPFD_CLOEXEC, 0);
  return abi::kSuccess;
}
Result MemImport(abi::Handle* handle, void* shareable, int) {
  FAKE_CALL(cuMemImportFromShareableHandle)
  const auto fd = static_cast<int>(reinterpret_cast<intptr_t>(shareable));
  struct stat file {};
  if (fstat(fd, &file) != 0 || file.st_size == 0) return abi::kInvalidValue;
  *handle = the->next_handle_++;
  the->handles_[*handle] = {static_cast<size_t>(file.st_size), fcntl(fd, F_DUPFD_CLOEXEC, 0), 0,
                            true, 1};
  return abi::kSuccess;
}
Result MemRetainAllocationHandle(abi::Handle* handle, void* pointer) {
  FAKE_CALL(cuMemRetainAllocationHandle)
  const FakeDriver::Memory* const m = the->Find(reinterpret_cast<Address>(pointer));
  if (m == nullptr || m->handle == 0) return abi::kInvalidValue;
  *handle = m->handle;
  ++the->handles_.at(*handle).references;
  return abi::kSuccess;
}
Result MemGetHandleForAddressRange(void* handle, Address pointer, size_t bytes, int type,
                                   unsigned long long) {
  FAKE_CALL(cuMemGetHandleForAddressRange)
  if (type != abi::kRangeDmaBuf || pointer % 4096 != 0 || bytes % 4096 != 0) {
    return abi::kInvalidValue;
  }
  *static_cast<int*>(handle) = memfd_create("fake-dmabuf", MFD_CLOEXEC);
  return abi::kSuccess;
}

}  // namespace

void AddSharing(Driver& d) {
  d.cuIpcGetMemHandle = IpcGetMemHandle;
  d.cuIpcOpenMemHandle_v2 = IpcOpenMemHandle;
  d.cuIpcCloseMemHandle = IpcCloseMemHandle;
  d.cuMemExportToShareableHandle = MemExport;
  d.cuMemImportFromShareableHandle = MemImport;
  d.cuMemRetainAllocationHandle = MemRetainAllocationHandle;
  d.cuMemGetHandleForAddressRange = MemGetHandleForAddressRange;
}

}  // namespace verbena::gpu::fake
