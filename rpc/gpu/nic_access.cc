// CudaDevice: what NICs have to know of it.
#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "rpc/gpu/cuda_device.h"
#include "rpc/topology/pci.h"

namespace verbena::gpu {

void CudaDevice::AskNicFacts() {
  using abi::DeviceAttribute;
  const auto asked = [this](DeviceAttribute attribute) {
    int value = 0;
    return driver_.cuDeviceGetAttribute(&value, attribute, device_) == abi::kSuccess ? value : 0;
  };
  char address[32] = {};
  if (driver_.cuDeviceGetPCIBusId != nullptr &&
      driver_.cuDeviceGetPCIBusId(address, sizeof address, device_) == abi::kSuccess) {
    nic_facts_.pci = absl::AsciiStrToLower(address);
    nic_facts_.window_bytes = topology::LargestBarBytes(nic_facts_.pci);
  }
  nic_facts_.dma_buf =
      driver_.cuMemGetHandleForAddressRange != nullptr && asked(DeviceAttribute::kDmaBuf) != 0;
  // What others read of it over NVLink is ordered behind what it sees itself.
  nic_facts_.flushes = asked(DeviceAttribute::kRdmaWritesOrdering) < abi::kOrderedForOwner;
  const bool can_flush = driver_.cuFlushGPUDirectRDMAWrites != nullptr &&
                         (asked(DeviceAttribute::kRdmaFlushOptions) & abi::kFlushFromHost) != 0;
  nic_facts_.writable = !nic_facts_.flushes || can_flush;
}

absl::Status CudaDevice::FlushNicWrites() {
  if (!nic_facts_.flushes) return absl::OkStatus();
  if (driver_.cuFlushGPUDirectRDMAWrites == nullptr) {
    return absl::UnimplementedError("cuda: this driver does not flush what NICs write");
  }
  const absl::StatusOr<abi::Context> context = context_.Get();
  if (!context.ok()) return context.status();
  const InContext in(driver_, *context);
  if (in.result() != abi::kSuccess) return Note(in.result(), "entering its context");
  return Note(
      driver_.cuFlushGPUDirectRDMAWrites(abi::kFlushCurrentContext, abi::kFlushToAllDevices),
      "flushing what a NIC wrote");
}

}  // namespace verbena::gpu
