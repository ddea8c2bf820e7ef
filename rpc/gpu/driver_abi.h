#pragma once
// What Verbena uses of the CUDA driver's C interface: types, values and functions of libcuda.so.1.
// Written down here, so that one build, without the CUDA toolkit, runs with and without GPUs; where
// the toolkit is there, abi_check.cc compares each line with its cuda.h. The interface is stable: a
// function that changes gets a new name (_v2).
//
// Functions keep the driver's names, so that its manual can be searched for them; types and values
// have this project's.
#include <cstddef>
#include <cstdint>

namespace verbena::gpu::abi {

using Result = int;                  // CUresult
using Ordinal = int;                 // CUdevice
using Address = unsigned long long;  // CUdeviceptr
using Handle = unsigned long long;   // CUmemGenericAllocationHandle
using Context = struct ContextObject*;
using Stream = struct StreamObject*;
using Event = struct EventObject*;
using Module = struct ModuleObject*;
using Function = struct FunctionObject*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kStubLibrary = 34;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kInvalidContext = 201;
inline constexpr Result kEccUncorrectable = 214;
inline constexpr Result kPeerAccessUnsupported = 217;
inline constexpr Result kNvlinkUncorrectable = 220;
inline constexpr Result kContained = 226;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kHostMemoryAlreadyRegistered = 712;
inline constexpr Result kHardwareStackError = 714;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kNotPermitted = 800;
inline constexpr Result kNotSupported = 801;
inline constexpr Result kStreamCaptureUnsupported = 900;
inline constexpr Result kStreamCaptureWrongThread = 908;
inline constexpr Result kUnknown = 999;

// CUpointer_attribute
enum class PointerAttribute : int {
  kContext = 1,
  kMemoryType = 2,
  kBufferId = 7,
  kIsManaged = 8,
  kDeviceOrdinal = 9,
  kLegacyIpcCapable = 10,
  kRangeStart = 11,
  kRangeBytes = 12,
  kMapped = 13,
  kAllowedHandleTypes = 14,
  kPool = 17,
  kMappingBytes = 18,
  kMappingBase = 19,
};
inline constexpr unsigned kMemoryTypeHost = 1;
inline constexpr unsigned kMemoryTypeDevice = 2;

// CUdevice_attribute
enum class DeviceAttribute : int {
  kVirtualMemory = 102,
  kPosixDescriptors = 103,
  kGpuDirectRdma = 116,
  kRdmaFlushOptions = 117,
  kRdmaWritesOrdering = 118,
  kDmaBuf = 124,
};

inline constexpr size_t kIpcHandleBytes = 64;
struct IpcHandle {
  std::byte bytes[kIpcHandleBytes];
};
struct Uuid {
  std::byte bytes[16];
};

inline constexpr int kHandleTypePosix = 1;   // CUmemAllocationHandleType
inline constexpr int kLocationDevice = 1;    // CUmemLocationType
inline constexpr int kAllocationPinned = 1;  // CUmemAllocationType
inline constexpr int kAccessRead = 1;        // CUmemAccess_flags
inline constexpr int kAccessReadWrite = 3;
inline constexpr int kGranularityMinimum = 0;  // CUmemAllocationGranularity_flags
inline constexpr int kP2pNativeAtomics = 3;    // CUdevice_P2PAttribute
inline constexpr int kRangeDmaBuf = 1;         // CUmemRangeHandleType

struct Location {  // CUmemLocation
  int type = kLocationDevice;
  int id = 0;
};
struct AllocationProperties {  // CUmemAllocationProp
  int type = kAllocationPinned;
  int handle_types = 0;
  Location location;
  void* win32_metadata = nullptr;
  struct {
    unsigned char compression = 0;
    unsigned char gpu_direct_rdma = 0;
    unsigned short usage = 0;
    unsigned char reserved[4] = {};
  } flags;
};
struct AccessDescription {  // CUmemAccessDesc
  Location location;
  int flags = kAccessReadWrite;
};

// Of kRdmaFlushOptions, kRdmaWritesOrdering, and CUflushGPUDirectRDMAWrites*
inline constexpr int kFlushFromHost = 1;
inline constexpr int kOrderedForOwner = 100;
inline constexpr int kFlushCurrentContext = 0;
inline constexpr int kFlushToAllDevices = 200;
inline constexpr unsigned kIpcLazyPeerAccess = 1;
inline constexpr int kCaptureRelaxed = 2;   // CUstreamCaptureMode
inline constexpr int kCapturesNothing = 0;  // CUstreamCaptureStatus
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterReadOnly = 8;
inline constexpr unsigned kHostAllocPortable = 1;

// X(name, parameters): each returns a Result.
#define VERBENA_DRIVER_FUNCTIONS(X)                                                           \
  X(cuInit, (unsigned flags))                                                                 \
  X(cuDriverGetVersion, (int* version))                                                       \
  X(cuGetErrorName, (abi::Result error, const char** name))                                   \
  X(cuGetErrorString, (abi::Result error, const char** text))                                 \
  X(cuDeviceGetCount, (int* count))                                                           \
  X(cuDeviceGet, (abi::Ordinal * device, int ordinal))                                        \
  X(cuDeviceGetName, (char* name, int bytes, abi::Ordinal device))                            \
  X(cuDeviceGetUuid_v2, (abi::Uuid * uuid, abi::Ordinal device))                              \
  X(cuDeviceGetAttribute, (int* value, abi::DeviceAttribute attribute, abi::Ordinal device))  \
  X(cuDeviceCanAccessPeer, (int* can, abi::Ordinal device, abi::Ordinal peer))                \
  X(cuDeviceGetP2PAttribute, (int* value, int attribute, abi::Ordinal from, abi::Ordinal to)) \
  X(cuDevicePrimaryCtxRetain, (abi::Context * context, abi::Ordinal device))                  \
  X(cuDevicePrimaryCtxRelease_v2, (abi::Ordinal device))                                      \
  X(cuDevicePrimaryCtxGetState, (abi::Ordinal device, unsigned* flags, int* active))          \
  X(cuCtxPushCurrent_v2, (abi::Context context))                                              \
  X(cuCtxPopCurrent_v2, (abi::Context * context))                                             \
  X(cuPointerGetAttributes,                                                                   \
    (unsigned count, abi::PointerAttribute* attributes, void** values, abi::Address pointer)) \
  X(cuIpcGetMemHandle, (abi::IpcHandle * handle, abi::Address pointer))                       \
  X(cuIpcOpenMemHandle_v2, (abi::Address * pointer, abi::IpcHandle handle, unsigned flags))   \
  X(cuIpcCloseMemHandle, (abi::Address pointer))                                              \
  X(cuMemCreate, (abi::Handle * handle, size_t bytes, const abi::AllocationProperties* how,   \
                  unsigned long long flags))                                                  \
  X(cuMemRelease, (abi::Handle handle))                                                       \
  X(cuMemAddressReserve, (abi::Address * pointer, size_t bytes, size_t alignment,             \
                          abi::Address wish, unsigned long long flags))                       \
  X(cuMemAddressFree, (abi::Address pointer, size_t bytes))                                   \
  X(cuMemMap, (abi::Address pointer, size_t bytes, size_t offset, abi::Handle handle,         \
               unsigned long long flags))                                                     \
  X(cuMemUnmap, (abi::Address pointer, size_t bytes))                                         \
  X(cuMemSetAccess,                                                                           \
    (abi::Address pointer, size_t bytes, const abi::AccessDescription* access, size_t count)) \
  X(cuMemGetAccess,                                                                           \
    (unsigned long long* flags, const abi::Location* location, abi::Address pointer))         \
  X(cuMemExportToShareableHandle,                                                             \
    (void* shareable, abi::Handle handle, int type, unsigned long long flags))                \
  X(cuMemImportFromShareableHandle, (abi::Handle * handle, void* shareable, int type))        \
  X(cuMemGetAllocationGranularity,                                                            \
    (size_t * bytes, const abi::AllocationProperties* how, int option))                       \
  X(cuMemRetainAllocationHandle, (abi::Handle * handle, void* pointer))                       \
  X(cuMemHostRegister_v2, (void* pointer, size_t bytes, unsigned flags))                      \
  X(cuMemHostUnregister, (void* pointer))                                                     \
  X(cuMemHostAlloc, (void** pointer, size_t bytes, unsigned flags))                           \
  X(cuMemFreeHost, (void* pointer))                                                           \
  X(cuMemHostGetDevicePointer_v2, (abi::Address * address, void* pointer, unsigned flags))    \
  X(cuStreamCreateWithPriority, (abi::Stream * stream, unsigned flags, int priority))         \
  X(cuStreamDestroy_v2, (abi::Stream stream))                                                 \
  X(cuStreamQuery, (abi::Stream stream))                                                      \
  X(cuStreamGetCtx, (abi::Stream stream, abi::Context * context))                             \
  X(cuStreamIsCapturing, (abi::Stream stream, int* captures))                                 \
  X(cuThreadExchangeStreamCaptureMode, (int* mode))                                           \
  X(cuStreamWaitEvent, (abi::Stream stream, abi::Event event, unsigned flags))                \
  X(cuStreamWriteValue32_v2,                                                                  \
    (abi::Stream stream, abi::Address address, uint32_t value, unsigned flags))               \
  X(cuEventCreate, (abi::Event * event, unsigned flags))                                      \
  X(cuEventRecord, (abi::Event event, abi::Stream stream))                                    \
  X(cuEventQuery, (abi::Event event))                                                         \
  X(cuEventDestroy_v2, (abi::Event event))                                                    \
  X(cuMemcpyAsync, (abi::Address to, abi::Address from, size_t bytes, abi::Stream stream))    \
  X(cuModuleLoadData, (abi::Module * module, const void* image))                              \
  X(cuModuleGetFunction, (abi::Function * function, abi::Module module, const char* name))    \
  X(cuLaunchKernel,                                                                           \
    (abi::Function function, unsigned blocks_x, unsigned blocks_y, unsigned blocks_z,         \
     unsigned threads_x, unsigned threads_y, unsigned threads_z, unsigned shared_bytes,       \
     abi::Stream stream, void** parameters, void** extra))

// Null where the driver has not got them: what is said of NICs, and dma-bufs (11.7 on).
#define VERBENA_DRIVER_FUNCTIONS_MAYBE(X)                                 \
  X(cuDeviceGetPCIBusId, (char* address, int bytes, abi::Ordinal device)) \
  X(cuFlushGPUDirectRDMAWrites, (int target, int scope))                  \
  X(cuMemGetHandleForAddressRange,                                        \
    (void* handle, abi::Address pointer, size_t bytes, int type, unsigned long long flags))

}  // namespace verbena::gpu::abi
