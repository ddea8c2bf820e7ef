// Compiled where the CUDA toolkit is: driver_abi.h against its cuda.h.
#include <cuda.h>

#include <cstddef>
#include <type_traits>

#include "rpc/gpu/driver.h"

namespace verbena::gpu {
namespace {

template <class A, class B>
constexpr bool kSameParameter =
    sizeof(A) == sizeof(B) && std::is_pointer_v<A> == std::is_pointer_v<B>&& std::is_class_v<A> ==
                                  std::is_class_v<B>;

template <class Ours, class Theirs>
struct Same : std::false_type {};
template <class R, class... Ours, class S, class... Theirs>
requires(sizeof...(Ours) == sizeof...(Theirs)) struct Same<R (*)(Ours...), S (*)(Theirs...)>
    : std::bool_constant<sizeof(R) == sizeof(S) && (kSameParameter<Ours, Theirs> && ...)> {
};

#define VERBENA_CHECK_FUNCTION(name, parameters) \
  static_assert(Same<decltype(Driver::name), decltype(&::name)>::value, #name);
VERBENA_DRIVER_FUNCTIONS(VERBENA_CHECK_FUNCTION)
VERBENA_DRIVER_FUNCTIONS_MAYBE(VERBENA_CHECK_FUNCTION)
#undef VERBENA_CHECK_FUNCTION

#define VERBENA_CHECK_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs))
VERBENA_CHECK_VALUE(abi::kSuccess, CUDA_SUCCESS);
VERBENA_CHECK_VALUE(abi::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
VERBENA_CHECK_VALUE(abi::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
VERBENA_CHECK_VALUE(abi::kStubLibrary, CUDA_ERROR_STUB_LIBRARY);
VERBENA_CHECK_VALUE(abi::kNoDevice, CUDA_ERROR_NO_DEVICE);
VERBENA_CHECK_VALUE(abi::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
VERBENA_CHECK_VALUE(abi::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
VERBENA_CHECK_VALUE(abi::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
VERBENA_CHECK_VALUE(abi::kPeerAccessUnsupported, CUDA_ERROR_PEER_ACCESS_UNSUPPORTED);
VERBENA_CHECK_VALUE(abi::kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
VERBENA_CHECK_VALUE(abi::kContained, 226);  // CUDA_ERROR_CONTAINED, 12.9 on
VERBENA_CHECK_VALUE(abi::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
VERBENA_CHECK_VALUE(abi::kNotReady, CUDA_ERROR_NOT_READY);
VERBENA_CHECK_VALUE(abi::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
VERBENA_CHECK_VALUE(abi::kHostMemoryAlreadyRegistered, CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
VERBENA_CHECK_VALUE(abi::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
VERBENA_CHECK_VALUE(abi::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
VERBENA_CHECK_VALUE(abi::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
VERBENA_CHECK_VALUE(abi::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
VERBENA_CHECK_VALUE(abi::kStreamCaptureUnsupported, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
VERBENA_CHECK_VALUE(abi::kStreamCaptureWrongThread, CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
VERBENA_CHECK_VALUE(abi::kCaptureRelaxed, CU_STREAM_CAPTURE_MODE_RELAXED);
VERBENA_CHECK_VALUE(abi::kCapturesNothing, CU_STREAM_CAPTURE_STATUS_NONE);
VERBENA_CHECK_VALUE(abi::kUnknown, CUDA_ERROR_UNKNOWN);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kContext, CU_POINTER_ATTRIBUTE_CONTEXT);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kIsManaged, CU_POINTER_ATTRIBUTE_IS_MANAGED);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kLegacyIpcCapable,
                    CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kRangeBytes, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kMapped, CU_POINTER_ATTRIBUTE_MAPPED);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kAllowedHandleTypes,
                    CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kMappingBytes, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
VERBENA_CHECK_VALUE(abi::PointerAttribute::kMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);
VERBENA_CHECK_VALUE(abi::kMemoryTypeHost, CU_MEMORYTYPE_HOST);
VERBENA_CHECK_VALUE(abi::kMemoryTypeDevice, CU_MEMORYTYPE_DEVICE);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kVirtualMemory,
                    CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kPosixDescriptors,
                    CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kGpuDirectRdma,
                    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kRdmaFlushOptions,
                    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kRdmaWritesOrdering,
                    CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING);
VERBENA_CHECK_VALUE(abi::DeviceAttribute::kDmaBuf, CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED);
VERBENA_CHECK_VALUE(abi::kHandleTypePosix, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
VERBENA_CHECK_VALUE(abi::kLocationDevice, CU_MEM_LOCATION_TYPE_DEVICE);
VERBENA_CHECK_VALUE(abi::kAllocationPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
VERBENA_CHECK_VALUE(abi::kAccessRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
VERBENA_CHECK_VALUE(abi::kAccessReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
VERBENA_CHECK_VALUE(abi::kGranularityMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
VERBENA_CHECK_VALUE(abi::kP2pNativeAtomics, CU_DEVICE_P2P_ATTRIBUTE_NATIVE_ATOMIC_SUPPORTED);
VERBENA_CHECK_VALUE(abi::kRangeDmaBuf, CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD);
VERBENA_CHECK_VALUE(abi::kFlushFromHost, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST);
VERBENA_CHECK_VALUE(abi::kOrderedForOwner, CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER);
VERBENA_CHECK_VALUE(abi::kFlushCurrentContext, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX);
VERBENA_CHECK_VALUE(abi::kFlushToAllDevices, CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_ALL_DEVICES);
VERBENA_CHECK_VALUE(abi::kIpcLazyPeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
VERBENA_CHECK_VALUE(abi::kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
VERBENA_CHECK_VALUE(abi::kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
VERBENA_CHECK_VALUE(abi::kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
VERBENA_CHECK_VALUE(abi::kHostRegisterReadOnly, CU_MEMHOSTREGISTER_READ_ONLY);
VERBENA_CHECK_VALUE(abi::kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
VERBENA_CHECK_VALUE(sizeof(abi::IpcHandle), sizeof(CUipcMemHandle));
VERBENA_CHECK_VALUE(sizeof(abi::Uuid), sizeof(CUuuid));
VERBENA_CHECK_VALUE(sizeof(abi::AllocationProperties), sizeof(CUmemAllocationProp));
VERBENA_CHECK_VALUE(offsetof(abi::AllocationProperties, handle_types),
                    offsetof(CUmemAllocationProp, requestedHandleTypes));
VERBENA_CHECK_VALUE(offsetof(abi::AllocationProperties, location),
                    offsetof(CUmemAllocationProp, location));
VERBENA_CHECK_VALUE(offsetof(abi::AllocationProperties, flags),
                    offsetof(CUmemAllocationProp, allocFlags));
VERBENA_CHECK_VALUE(offsetof(abi::AllocationProperties, flags.gpu_direct_rdma),
                    offsetof(CUmemAllocationProp, allocFlags.gpuDirectRDMACapable));
VERBENA_CHECK_VALUE(sizeof(abi::AccessDescription), sizeof(CUmemAccessDesc));
VERBENA_CHECK_VALUE(offsetof(abi::AccessDescription, flags), offsetof(CUmemAccessDesc, flags));
#undef VERBENA_CHECK_VALUE

}  // namespace
}  // namespace verbena::gpu
