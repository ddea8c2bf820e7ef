#pragma once
// Registrations of memory that is not the host's, so that a NIC reads and writes it by itself
// (GPUDirect): by a dma-buf that its device exports, else, where nvidia_peermem is loaded, by its
// address. One covers one allocation, or a part of one: memory that is mapped in parts has one for
// each. Each takes from the address space through which NICs reach the device, of which there is so
// much and no more.
#include <infiniband/verbs.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/statusor.h"
#include "rpc/memory/nic_access.h"

namespace verbena::fabric::verbs {

// The calls by which such memory is registered; tests put others in their place before any is made.
struct DeviceCalls {
  ibv_mr* (*register_dmabuf)(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                             int access) = nullptr;
  ibv_mr* (*register_address)(ibv_pd* pd, void* address, size_t bytes, int access) = nullptr;
  int (*deregister)(ibv_mr* mr) = nullptr;
  bool (*peermem)() = nullptr;  // whether the kernel takes a GPU's addresses for registration
};
DeviceCalls& TheDeviceCalls();

// How much of a device's memory this process registers with NICs at a time. 0: three quarters of
// what the device tells of its address space, as others need some too, or 128 MiB where it does not
// tell. VERBENA_VERBS_GPUDIRECT_BYTES_MAX says it, before anything is registered. Any thread.
void SetDeviceBytesMax(uint64_t bytes);
struct DeviceBytes {
  uint64_t registered = 0;
  uint64_t most = 0;
};
DeviceBytes DeviceBytesOf(memory::Device& device);

// Makes [data, data + bytes), which lies in `extent` of `device`, known to the NIC of `pd`; remote
// and local keys go by the device's own addresses. Whoever gets it deregisters it by
// DeregisterDevice. Setup thread only. UNIMPLEMENTED: this NIC, or device, has no such thing;
// RESOURCE_EXHAUSTED: no address space is left, by our bound or the kernel's; others: this memory
// cannot be. The text says what each way answered.
absl::StatusOr<ibv_mr*> RegisterDevice(ibv_pd* pd, memory::Device& device,
                                       const memory::Extent& extent, const std::byte* data,
                                       size_t bytes, int access);
// False: it is not one of those, and nothing was done. Setup thread only.
bool DeregisterDevice(ibv_mr* mr);

}  // namespace verbena::fabric::verbs
