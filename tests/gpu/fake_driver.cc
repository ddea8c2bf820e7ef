#include "tests/gpu/fake_driver.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "rpc/base/check.h"
#include "rpc/gpu/copy_kernel.h"

namespace verbena::gpu {
namespace {

using abi::Address;
using abi::Result;

constexpr size_t kUnitBytes = 2 << 20;
thread_local std::vector<abi::Context> current;

FakeDriver* the = nullptr;

abi::Context ContextOf(int gpu) {
  return reinterpret_cast<abi::Context>(static_cast<uintptr_t>(gpu + 1));
}
int GpuOf(abi::Context context) {
  return static_cast<int>(reinterpret_cast<uintptr_t>(context)) - 1;
}

FakeDriver::StreamState& Of(abi::Stream stream) {
  return *reinterpret_cast<FakeDriver::StreamState*>(stream);
}
FakeDriver::EventState& Of(abi::Event event) {
  return *reinterpret_cast<FakeDriver::EventState*>(event);
}

size_t Pages(size_t bytes) { return (bytes + 4095) / 4096 * 4096; }

// Whether this call is to fail; counts it.
#define FAKE_CALL(name)                               \
  if (Result refused; the->Refuses(#name, refused)) { \
    return refused;                                   \
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

Result StreamCreate(abi::Stream* stream, unsigned flags, int) {
  FAKE_CALL(cuStreamCreateWithPriority)
  if (!the->InContext()) return abi::kInvalidContext;
  VERBENA_CHECK(flags == abi::kStreamNonBlocking, "a stream that waits for others");
  *stream = the->MakeStream(GpuOf(current.back()));
  return abi::kSuccess;
}
Result StreamDestroy(abi::Stream stream) {
  std::erase(the->streams_, &Of(stream));
  delete &Of(stream);
  return abi::kSuccess;
}
Result StreamQuery(abi::Stream stream) {
  FAKE_CALL(cuStreamQuery)
  return Of(stream).queue.empty() ? abi::kSuccess : abi::kNotReady;
}
Result StreamGetCtx(abi::Stream stream, abi::Context* context) {
  *context = ContextOf(Of(stream).gpu);
  return abi::kSuccess;
}
Result StreamWaitEvent(abi::Stream stream, abi::Event event, unsigned) {
  FAKE_CALL(cuStreamWaitEvent)
  Of(stream).queue.push_back({nullptr, &Of(event).reached, Of(event).recorded});
  return abi::kSuccess;
}
Result StreamWriteValue32(abi::Stream stream, Address address, uint32_t value, unsigned flags) {
  FAKE_CALL(cuStreamWriteValue32_v2)
  VERBENA_CHECK(flags == 0, "a write without its barrier");
  std::byte* const to = the->Alias(address, sizeof value);
  Of(stream).queue.push_back({[to, value] { std::memcpy(to, &value, sizeof value); }});
  return abi::kSuccess;
}
Result EventCreate(abi::Event* event, unsigned flags) {
  FAKE_CALL(cuEventCreate)
  VERBENA_CHECK(flags == abi::kEventDisableTiming);
  *event = reinterpret_cast<abi::Event>(new FakeDriver::EventState);
  return abi::kSuccess;
}
Result EventRecord(abi::Event event, abi::Stream stream) {
  FAKE_CALL(cuEventRecord)
  FakeDriver::EventState& state = Of(event);
  const uint64_t number = ++state.recorded;
  Of(stream).queue.push_back({[&state, number] { state.reached = number; }});
  return abi::kSuccess;
}
Result EventQuery(abi::Event event) {
  FAKE_CALL(cuEventQuery)
  return Of(event).reached == Of(event).recorded ? abi::kSuccess : abi::kNotReady;
}
Result EventDestroy(abi::Event event) {
  delete &Of(event);
  return abi::kSuccess;
}
Result MemcpyAsync(Address to, Address from, size_t bytes, abi::Stream stream) {
  FAKE_CALL(cuMemcpyAsync)
  if (!the->InContext(Of(stream).gpu)) return abi::kInvalidContext;
  std::byte* const there = the->Alias(to, bytes);
  const std::byte* const here = the->Alias(from, bytes);
  if (there == nullptr || here == nullptr) return abi::kInvalidValue;  // the driver would block
  Of(stream).queue.push_back({[=] { std::memcpy(there, here, bytes); }});
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

// One module, with one function: the copy kernel.
Result ModuleLoadData(abi::Module* module, const void* image) {
  FAKE_CALL(cuModuleLoadData)
  if (!the->InContext() || image != CopyKernel::ptx()) return abi::kInvalidContext;
  *module = reinterpret_cast<abi::Module>(the);
  return abi::kSuccess;
}
Result ModuleGetFunction(abi::Function* function, abi::Module, const char* name) {
  if (std::strcmp(name, "verbena_copy") != 0) return abi::kInvalidValue;
  *function = reinterpret_cast<abi::Function>(the);
  return abi::kSuccess;
}
Result LaunchKernel(abi::Function, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                    unsigned, abi::Stream stream, void** parameters, void**) {
  FAKE_CALL(cuLaunchKernel)
  const int gpu = Of(stream).gpu;
  if (!the->InContext(gpu)) return abi::kInvalidContext;
  const auto* const pieces = static_cast<const CopyKernel::Piece*>(parameters[0]);
  const uint32_t count = *static_cast<const uint32_t*>(parameters[1]);
  for (uint32_t i = 0; i < count; ++i) {
    const auto [to, from, bytes] = pieces[i];
    std::byte* const there = the->Alias(to, bytes);
    const std::byte* const here = the->Alias(from, bytes);
    const bool aligned = to % 16 == 0 && from % 16 == 0;
    const bool reached = the->Find(to)->gpu == gpu && !the->Find(to)->imported &&
                         (the->Find(from)->gpu == gpu || the->Find(from)->imported);
    the->kernel_faults += there == nullptr || here == nullptr || !aligned || !reached;
    Of(stream).queue.push_back({[=, n = bytes] { std::memcpy(there, here, n); }});
  }
  return abi::kSuccess;
}

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
Result Granularity(size_t* bytes, const abi::AllocationProperties*, int) {
  *bytes = kUnitBytes;
  return abi::kSuccess;
}
Result ErrorName(Result error, const char** name) {
  *name = error == abi::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_A_TEST";
  return abi::kSuccess;
}

Driver Table() {
  Driver d;
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
  d.cuIpcGetMemHandle = IpcGetMemHandle;
  d.cuIpcOpenMemHandle_v2 = IpcOpenMemHandle;
  d.cuIpcCloseMemHandle = IpcCloseMemHandle;
  d.cuMemCreate = MemCreate;
  d.cuMemRelease = MemRelease;
  d.cuMemAddressReserve = MemAddressReserve;
  d.cuMemAddressFree = MemAddressFree;
  d.cuMemMap = MemMap;
  d.cuMemUnmap = MemUnmap;
  d.cuMemSetAccess = MemSetAccess;
  d.cuMemExportToShareableHandle = MemExport;
  d.cuMemImportFromShareableHandle = MemImport;
  d.cuMemGetAllocationGranularity = Granularity;
  d.cuMemRetainAllocationHandle = MemRetainAllocationHandle;
  d.cuMemGetHandleForAddressRange = MemGetHandleForAddressRange;
  d.cuMemHostAlloc = MemHostAlloc;
  d.cuMemFreeHost = MemFreeHost;
  d.cuMemHostRegister_v2 = MemHostRegister;
  d.cuMemHostUnregister = MemHostUnregister;
  d.cuMemHostGetDevicePointer_v2 = MemHostGetDevicePointer;
  d.cuStreamCreateWithPriority = StreamCreate;
  d.cuStreamDestroy_v2 = StreamDestroy;
  d.cuStreamQuery = StreamQuery;
  d.cuStreamGetCtx = StreamGetCtx;
  d.cuStreamWaitEvent = StreamWaitEvent;
  d.cuStreamWriteValue32_v2 = StreamWriteValue32;
  d.cuEventCreate = EventCreate;
  d.cuEventRecord = EventRecord;
  d.cuEventQuery = EventQuery;
  d.cuEventDestroy_v2 = EventDestroy;
  d.cuMemcpyAsync = MemcpyAsync;
  d.cuMemGetAccess = MemGetAccess;
  d.cuModuleLoadData = ModuleLoadData;
  d.cuModuleGetFunction = ModuleGetFunction;
  d.cuLaunchKernel = LaunchKernel;
  return d;
}

}  // namespace

FakeDriver& FakeDriver::Reset(int gpus) {
  // What the last test left is not looked at again, but peers may still have it.
  static auto* const all = new std::vector<std::unique_ptr<FakeDriver>>;
  the = all->emplace_back(std::make_unique<FakeDriver>()).get();
  the->table_ = Table();
  the->contexts.assign(static_cast<size_t>(gpus), 0);
  return *the;
}

FakeDriver& FakeDriver::Get() { return *the; }

bool FakeDriver::Refuses(const char* function, Result& result) {
  ++calls[function];
  const auto it = failures_.find(function);
  if (it == failures_.end()) return false;
  result = it->second.first;
  if (!it->second.second) failures_.erase(it);
  return true;
}

void FakeDriver::Fail(const std::string& function, Result result, bool stays) {
  failures_[function] = {result, stays};
}

bool FakeDriver::InContext(int gpu) {
  const bool there = !current.empty() && (gpu < 0 || GpuOf(current.back()) == gpu);
  wrong_context += !there;
  return there;
}

FakeDriver::Memory* FakeDriver::Find(Address address, Address* base) {
  auto it = memories_.upper_bound(address);
  if (it == memories_.begin()) return nullptr;
  --it;
  if (address - it->first >= it->second.bytes) return nullptr;
  if (base != nullptr) *base = it->first;
  return &it->second;
}

std::byte* FakeDriver::Alias(Address address, size_t bytes) {
  Address base = 0;
  const Memory* const m = Find(address, &base);
  return m == nullptr || bytes > m->bytes - (address - base) ? nullptr
                                                             : m->alias + (address - base);
}

Address FakeDriver::Add(Memory memory) {
  void* const visible =
      mmap(nullptr, Pages(memory.bytes), PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  VERBENA_CHECK(visible != MAP_FAILED);
  const auto base = reinterpret_cast<Address>(visible);
  memory.id = next_id_++;
  memories_[base] = memory;
  return base;
}

Address FakeDriver::Malloc(int gpu, size_t bytes, MemoryKind kind) {
  Memory m;
  m.bytes = bytes;
  m.gpu = gpu;
  m.kind = kind;
  m.alias = static_cast<std::byte*>(
      mmap(nullptr, Pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  return Add(m);
}

void FakeDriver::Free(Address base) {
  const auto it = memories_.find(base);
  VERBENA_CHECK(it != memories_.end());
  memories_.erase(it);  // the address and the bytes stay: peers may have them
}

Address FakeDriver::Reserve(size_t bytes) {
  void* const visible = mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  VERBENA_CHECK(visible != MAP_FAILED);
  reservations_[reinterpret_cast<Address>(visible)] = bytes;
  return reinterpret_cast<Address>(visible);
}

void FakeDriver::Map(Address at, size_t bytes, int gpu, bool descriptor) {
  abi::AllocationProperties how;
  how.location.id = gpu;
  how.handle_types = descriptor ? abi::kHandleTypePosix : 0;
  abi::Handle handle = 0;
  VERBENA_CHECK(MemCreate(&handle, bytes, &how, 0) == abi::kSuccess);
  VERBENA_CHECK(MemMap(at, bytes, 0, handle, 0) == abi::kSuccess);
  MemRelease(handle);
}

abi::Stream FakeDriver::MakeStream(int gpu) {
  auto* const made = new StreamState;
  made->gpu = gpu;
  streams_.push_back(made);
  return reinterpret_cast<abi::Stream>(made);
}

void FakeDriver::Write(Address to, const void* from, size_t bytes) {
  std::memcpy(Alias(to, bytes), from, bytes);
}
void FakeDriver::Read(void* to, Address from, size_t bytes) {
  std::memcpy(to, Alias(from, bytes), bytes);
}

void FakeDriver::Launch(abi::Stream stream, std::function<void()> kernel, bool held) {
  Operation operation;
  operation.act = std::move(kernel);
  if (held) operation.released = &kernels_released_, operation.needs = kernels_released_ + 1;
  Of(stream).queue.push_back(std::move(operation));
}

void FakeDriver::ReleaseKernels() { ++kernels_released_; }

size_t FakeDriver::Run(size_t operations) {
  size_t done = 0;
  for (bool any = true; any && done < operations;) {
    any = false;
    for (StreamState* stream : streams_) {
      while (!stream->queue.empty() && done < operations) {
        Operation& front = stream->queue.front();
        if (front.released != nullptr && *front.released < front.needs) break;
        if (front.act) front.act();
        stream->queue.pop_front();
        ++done;
        any = true;
      }
    }
  }
  return done;
}

size_t FakeDriver::pending() const {
  size_t pending = 0;
  for (const StreamState* stream : streams_) pending += stream->queue.size();
  return pending;
}

}  // namespace verbena::gpu
