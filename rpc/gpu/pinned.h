#pragma once
// Page-locks the library's host memory, and what users register, for all GPUs of the process: a
// domain of memory/registrars.h.
#include <memory>

#include "rpc/gpu/cuda_device.h"
#include "rpc/memory/registrar.h"

namespace verbena::gpu {

class PinnedMemory final : public memory::Registrar {
 public:
  // Works in the context of `device`, which outlives it and has taken one.
  explicit PinnedMemory(CudaDevice& device) : device_(device) {}

  // UNIMPLEMENTED where it is not page-locked, for whatever reason: copies are staged then. Setup
  // thread only.
  absl::StatusOr<std::unique_ptr<memory::Registration>> Register(const memory::Region& region,
                                                                 uint8_t uses) override;
  absl::Status Unregister(std::unique_ptr<memory::Registration>& registration) override;

 private:
  CudaDevice& device_;
};

}  // namespace verbena::gpu
