#pragma once
// What an example does on a GPU besides sending and fetching: its own kernels, on a stream of its
// own. By the driver alone, found at run time, so that one program, built without a toolkit, runs
// with and without GPUs; a program that is linked with the CUDA runtime has cudaStream_t and
// kernel<<<...>>> for the same.
#include <array>
#include <cstddef>
#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/device.h"

namespace verbena::examples {

// How many GPUs there are, made known to Verbena. UNAVAILABLE says why there are none.
absl::StatusOr<int> UseAllGpus();

// Whether to end rather than to go on in the host's memory, as VERBENA_EXAMPLE_GPU=required says.
bool GpuRequired();

class Gpu {
 public:
  // `kernels` is PTX, compiled here for this GPU; null: none. Errors name what the driver refused.
  static absl::StatusOr<std::unique_ptr<Gpu>> Open(int number, const char* kernels = nullptr);
  ~Gpu();
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;

  Device device() const { return Device::Cuda(number_); }
  DeviceStream stream() const { return DeviceStream(stream_); }
  const std::string& name() const { return name_; }

  // The methods below: any thread.
  // Queues one of the kernels. Each argument is of the size that its parameter has.
  template <class... Arguments>
  absl::Status Launch(const char* kernel, unsigned blocks, unsigned threads,
                      Arguments... arguments) const {
    std::array<void*, sizeof...(Arguments)> pointers{&arguments...};
    return LaunchOne(kernel, blocks, threads, pointers.data());
  }
  // Waits for what is queued.
  absl::Status Synchronize() const;
  // Waits for what is queued, then copies between this GPU's memory and the host's. Block.
  absl::Status CopyToHost(void* to, const std::byte* from, size_t bytes) const;
  absl::Status CopyFromHost(std::byte* to, const void* from, size_t bytes) const;

 private:
  explicit Gpu(int number) : number_(number) {}
  absl::Status LaunchOne(const char* kernel, unsigned blocks, unsigned threads,
                         void** arguments) const;

  const int number_;
  std::string name_;
  void* context_ = nullptr;
  void* module_ = nullptr;
  void* stream_ = nullptr;
};

}  // namespace verbena::examples
