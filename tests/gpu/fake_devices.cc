// What the fake driver says of its GPUs and of addresses, and contexts.
#include <cstdio>
#include <cstring>

#include "tests/gpu/fake_driver_calls.h"

namespace verbena::gpu::fake {
namespace {

Result DeviceGetCount(int* count) {
  *count = static_cast<int>(the->contexts.size());
  return abi::kSuccess;
}
Result DeviceGet(abi::Ordinal* device, int ordinal) {
  const bool known = ordinal >= 0 && ordinal < static_cast<int>(the->contexts.size());
  *device = ordinal;
  return known ? abi::kSuccess : abi::kInvalidDevice;
}
Result DeviceGetUuid(abi::Uuid* uuid, abi::Ordinal device) {
  std::memset(uuid, 0x10 + device, sizeof *uuid);
  return abi::kSuccess;
}
Result DeviceGetAttribute(int* value, abi::DeviceAttribute attribute, abi::Ordinal) {
  const auto said = the->attributes.find(attribute);
  *value = said == the->attributes.end() ? 1 : said->second;
  return abi::kSuccess;
}
Result DeviceGetPciBusId(char* address, int bytes, abi::Ordinal device) {
  std::snprintf(address, static_cast<size_t>(bytes), "0000:%02X:00.0", 0x1b + device);
  return abi::kSuccess;
}
Result FlushWrites(int target, int scope) {
  FAKE_CALL(cuFlushGPUDirectRDMAWrites)
  if (!the->InContext()) return abi::kInvalidContext;
  const bool known = target == abi::kFlushCurrentContext && scope == abi::kFlushToAllDevices;
  return known ? abi::kSuccess : abi::kInvalidValue;
}
Result DeviceGetP2PAttribute(int* value, int, abi::Ordinal, abi::Ordinal) {
  *value = the->nvlink;
  return abi::kSuccess;
}

Result ErrorName(Result error, const char** name) {
  *name = error == abi::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_A_TEST";
  return abi::kSuccess;
}

Result DevicePrimaryCtxRetain(abi::Context* context, abi::Ordinal gpu) {
  FAKE_CALL(cuDevicePrimaryCtxRetain)
  ++the->contexts[static_cast<size_t>(gpu)];
  *context = ContextOf(gpu);
  return abi::kSuccess;
}
Result DevicePrimaryCtxRelease(abi::Ordinal gpu) {
  --the->contexts[static_cast<size_t>(gpu)];
  return abi::kSuccess;
}
Result CtxPush(abi::Context context) {
  FAKE_CALL(cuCtxPushCurrent_v2)
  current.push_back(context);
  return abi::kSuccess;
}
Result CtxPop(abi::Context* context) {
  *context = current.back();
  current.pop_back();
  return abi::kSuccess;
}

void Put(abi::PointerAttribute attribute, void* value, const FakeDriver::Memory& m, Address base,
         Address range, size_t range_bytes) {
  const auto put = [value](auto v) { std::memcpy(value, &v, sizeof v); };
  switch (attribute) {
    case abi::PointerAttribute::kContext:
      return put(m.kind == MemoryKind::kMalloc || m.kind == MemoryKind::kManaged ? ContextOf(m.gpu)
                                                                                 : abi::Context{});
    case abi::PointerAttribute::kMemoryType:
      return put(m.host ? abi::kMemoryTypeHost : abi::kMemoryTypeDevice);
    case abi::PointerAttribute::kBufferId:
      return put(m.id);
    case abi::PointerAttribute::kIsManaged:
      return put(m.kind == MemoryKind::kManaged);
    case abi::PointerAttribute::kDeviceOrdinal:
      return put(m.gpu);
    case abi::PointerAttribute::kLegacyIpcCapable:
      return put(m.kind == MemoryKind::kMalloc && !m.imported);
    case abi::PointerAttribute::kRangeStart:
      return put(range);
    case abi::PointerAttribute::kRangeBytes:
      return put(range_bytes);
    case abi::PointerAttribute::kMapped:
      return put(true);
    case abi::PointerAttribute::kAllowedHandleTypes:
      return put(uint64_t{m.handle != 0 && the->handles_[m.handle].descriptor});
    case abi::PointerAttribute::kPool:
      return put(uint64_t{m.kind == MemoryKind::kPool});
    case abi::PointerAttribute::kMappingBytes:
      return put(m.bytes);
    case abi::PointerAttribute::kMappingBase:
      return put(base);
  }
}

Result PointerGetAttributes(unsigned count, abi::PointerAttribute* attributes, void** values,
                            Address pointer) {
  FAKE_CALL(cuPointerGetAttributes)
  Address base = 0;
  FakeDriver::Memory* const m = the->Find(pointer, &base);
  if (m == nullptr) return abi::kSuccess;  // values stay, as the driver leaves them
  Address range = base;
  size_t range_bytes = m->bytes;
  for (const auto& [at, bytes] : the->reservations_) {
    if (m->kind == MemoryKind::kVirtual && base >= at && base < at + bytes) {
      range = at, range_bytes = bytes;
    }
  }
  for (unsigned i = 0; i < count; ++i) Put(attributes[i], values[i], *m, base, range, range_bytes);
  return abi::kSuccess;
}

// Of one GPU's memory, or of what was opened or mapped for it.
Result MemGetAccess(unsigned long long* flags, const abi::Location* location, Address pointer) {
  FAKE_CALL(cuMemGetAccess)
  const FakeDriver::Memory* const m = the->Find(pointer);
  if (m == nullptr || m->kind != MemoryKind::kVirtual) return abi::kInvalidValue;
  *flags = m->gpu == location->id ? abi::kAccessReadWrite : 0;
  return abi::kSuccess;
}

}  // namespace

void AddDevices(Driver& d) {
  d.cuInit = [](unsigned) { return abi::kSuccess; };
  d.cuDriverGetVersion = [](int* v) { return *v = 13000, abi::kSuccess; };
  d.cuGetErrorName = ErrorName;
  d.cuGetErrorString = [](Result, const char** text) { return *text = "as told", abi::kSuccess; };
  d.cuDeviceGetCount = DeviceGetCount;
  d.cuDeviceGet = DeviceGet;
  d.cuDeviceGetUuid_v2 = DeviceGetUuid;
  d.cuDeviceGetAttribute = DeviceGetAttribute;
  d.cuDeviceGetP2PAttribute = DeviceGetP2PAttribute;
  d.cuDeviceGetPCIBusId = DeviceGetPciBusId;
  d.cuFlushGPUDirectRDMAWrites = FlushWrites;
  d.cuDevicePrimaryCtxRetain = DevicePrimaryCtxRetain;
  d.cuDevicePrimaryCtxRelease_v2 = DevicePrimaryCtxRelease;
  d.cuCtxPushCurrent_v2 = CtxPush;
  d.cuCtxPopCurrent_v2 = CtxPop;
  d.cuPointerGetAttributes = PointerGetAttributes;
  d.cuMemGetAccess = MemGetAccess;
}

}  // namespace verbena::gpu::fake
