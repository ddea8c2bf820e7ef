#include <memory>
#include <string>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "rpc/gpu/cuda_device.h"
#include "rpc/gpu/pinned.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/registrars.h"
#include "verbena/gpu.h"

namespace verbena {
namespace {

// Once, for the first GPU whose context is taken: page-locked memory is so for all of them.
void PinHostMemory(gpu::CudaDevice& device) {
  static absl::Mutex mutex;
  static bool pinned = false;
  absl::MutexLock lock(&mutex);
  if (std::exchange(pinned, true)) return;
  memory::PostToSetup(
      [&device] { memory::AddRegistrar(*new gpu::PinnedMemory(device), "cuda").IgnoreError(); });
}

absl::Status UseGpu(const gpu::Driver& driver, int number) {
  if (memory::FindDevice(Device::Cuda(number)).ok()) return absl::OkStatus();
  absl::StatusOr<std::unique_ptr<gpu::CudaDevice>> made = gpu::CudaDevice::Create(driver, number);
  if (!made.ok()) return made.status();
  (*made)->context().set_on_taken([device = made->get()] { PinHostMemory(*device); });
  memory::RegisterDevice(*std::move(made));
  return absl::OkStatus();
}

absl::Status UseAll(absl::Span<const int> numbers) {
  const absl::StatusOr<const gpu::Driver*> driver = gpu::LoadDriver();
  if (!driver.ok()) return driver.status();
  std::vector<int> all(numbers.begin(), numbers.end());
  int count = 0;
  if (all.empty() && (*driver)->cuDeviceGetCount(&count) == gpu::abi::kSuccess) {
    for (int i = 0; i < count; ++i) all.push_back(i);
  }
  for (const int number : all) {
    if (absl::Status s = UseGpu(**driver, number); !s.ok()) return s;
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status UseGpus(absl::Span<const int> numbers) {
  static absl::Mutex mutex;
  absl::MutexLock lock(&mutex);
  absl::Status status = UseAll(numbers);
  memory::SayNoGpus(std::string(status.message()));
  return status;
}

}  // namespace verbena
