// The fake driver's memory: physical, and mapped; and page-locked memory of the host.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>

#include "rpc/base/check.h"
#include "tests/gpu/fake_driver_calls.h"

namespace verbena::gpu::fake {
namespace {

Result MemCreate(abi::Handle* handle, size_t bytes, const abi::AllocationProperties* how,
                 unsigned long long) {
  FAKE_CALL(cuMemCreate)
  if (bytes % kUnitBytes != 0 || bytes == 0) return abi::kInvalidValue;
  if (how->handle_types != 0 && !the->descriptors) return abi::kNotSupported;
  size_t used = 0;
  for (const auto& [known, physical] : the->handles_) used += physical.bytes;
  if (bytes > the->memory_bytes - used) return abi::kOutOfMemory;
  const int fd = memfd_create("fake-gpu", MFD_CLOEXEC);
  VERBENA_CHECK(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  *handle = the->next_handle_++;
  the->handles_[*handle] = {bytes, fd, how->location.id, how->handle_types != 0, 1};
  return abi::kSuccess;
}
Result MemRelease(abi::Handle handle) {
  FAKE_CALL(cuMemRelease)
  const auto it = the->handles_.find(handle);
  VERBENA_CHECK(it != the->handles_.end(), "handle ", handle);
  if (--it->second.references > 0) return abi::kSuccess;
  close(it->second.fd);
  the->handles_.erase(it);
  return abi::kSuccess;
}
Result MemAddressReserve(Address* pointer, size_t bytes, size_t, Address, unsigned long long) {
  FAKE_CALL(cuMemAddressReserve)
  *pointer = the->Reserve(bytes);
  return abi::kSuccess;
}
Result MemAddressFree(Address pointer, size_t bytes) {
  FAKE_CALL(cuMemAddressFree)
  VERBENA_CHECK(the->reservations_.erase(pointer) == 1);
  munmap(reinterpret_cast<void*>(pointer), bytes);
  return abi::kSuccess;
}
Result MemMap(Address pointer, size_t bytes, size_t, abi::Handle handle, unsigned long long) {
  FAKE_CALL(cuMemMap)
  FakeDriver::Physical& physical = the->handles_.at(handle);
  if (bytes > physical.bytes) return abi::kInvalidValue;
  FakeDriver::Memory m;
  m.bytes = bytes;
  m.gpu = physical.gpu;
  m.kind = MemoryKind::kVirtual;
  m.handle = handle;
  m.id = the->next_id_++;
  m.alias = static_cast<std::byte*>(
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, physical.fd, 0));
  ++physical.references;
  the->memories_[pointer] = m;
  return abi::kSuccess;
}
Result MemUnmap(Address pointer, size_t) {
  FAKE_CALL(cuMemUnmap)
  const auto it = the->memories_.find(pointer);
  VERBENA_CHECK(it != the->memories_.end() && it->second.kind == MemoryKind::kVirtual);
  munmap(it->second.alias, it->second.bytes);
  const abi::Handle handle = it->second.handle;
  the->memories_.erase(it);
  return MemRelease(handle);
}
Result MemSetAccess(Address pointer, size_t, const abi::AccessDescription* who, size_t count) {
  FAKE_CALL(cuMemSetAccess)
  const FakeDriver::Memory* const m = the->Find(pointer);
  VERBENA_CHECK(m != nullptr && count == 1);
  return the->peers || m->gpu == who->location.id ? abi::kSuccess : abi::kPeerAccessUnsupported;
}
Result Granularity(size_t* bytes, const abi::AllocationProperties*, int) {
  *bytes = kUnitBytes;
  return abi::kSuccess;
}

Result MemHostAlloc(void** pointer, size_t bytes, unsigned) {
  FAKE_CALL(cuMemHostAlloc)
  if (!the->InContext()) return abi::kInvalidContext;
  *pointer = aligned_alloc(4096, Pages(bytes));
  FakeDriver::Memory m;
  m.bytes = bytes;
  m.host = true;
  m.alias = static_cast<std::byte*>(*pointer);
  the->memories_[reinterpret_cast<Address>(*pointer)] = m;
  return abi::kSuccess;
}
Result MemFreeHost(void* pointer) {
  FAKE_CALL(cuMemFreeHost)
  VERBENA_CHECK(the->memories_.erase(reinterpret_cast<Address>(pointer)) == 1);
  free(pointer);
  return abi::kSuccess;
}
Result MemHostRegister(void* pointer, size_t bytes, unsigned) {
  FAKE_CALL(cuMemHostRegister_v2)
  if (!the->InContext()) return abi::kInvalidContext;
  FakeDriver::Memory m;
  m.bytes = bytes;
  m.host = true;
  m.alias = static_cast<std::byte*>(pointer);
  the->memories_[reinterpret_cast<Address>(pointer)] = m;
  return abi::kSuccess;
}
Result MemHostUnregister(void* pointer) {
  FAKE_CALL(cuMemHostUnregister)
  VERBENA_CHECK(the->memories_.erase(reinterpret_cast<Address>(pointer)) == 1);
  return abi::kSuccess;
}
Result MemHostGetDevicePointer(Address* address, void* pointer, unsigned) {
  *address = reinterpret_cast<Address>(pointer);
  return abi::kSuccess;
}

}  // namespace

void AddMemory(Driver& d) {
  d.cuMemCreate = MemCreate;
  d.cuMemRelease = MemRelease;
  d.cuMemAddressReserve = MemAddressReserve;
  d.cuMemAddressFree = MemAddressFree;
  d.cuMemMap = MemMap;
  d.cuMemUnmap = MemUnmap;
  d.cuMemSetAccess = MemSetAccess;
  d.cuMemGetAllocationGranularity = Granularity;
  d.cuMemHostAlloc = MemHostAlloc;
  d.cuMemFreeHost = MemFreeHost;
  d.cuMemHostRegister_v2 = MemHostRegister;
  d.cuMemHostUnregister = MemHostUnregister;
  d.cuMemHostGetDevicePointer_v2 = MemHostGetDevicePointer;
}

}  // namespace verbena::gpu::fake
