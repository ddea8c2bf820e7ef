#pragma once
// Memory as users of GPUs have it, allocated by the driver and not by the library, and its bytes.
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "rpc/gpu/driver.h"
#include "verbena/buffer.h"

namespace verbena::gpu_test {

// "malloc": cuMemAlloc. "pool": cuMemAllocAsync. "virtual": two halves of physical memory, mapped
// side by side, of which a tensor uses one. "segments": the same, across both. "managed":
// cuMemAllocManaged, as the GPU's; "managed-host": the same as the host's. "pinned":
// cuMemHostAlloc, the host's. "heap": of the host, unknown to the library. "host", "library": a
// Buffer of the library's, on the host or on the GPU.
struct UserMemory {
  // A CHECK fails when there is none. The release of the Buffer frees it.
  static Buffer Make(const std::string& kind, int gpu, size_t bytes);
};

// The primary context of that GPU is current on this thread from now on, as in a user's program.
void UseOn(int gpu);

// Between any two places that the GPU or the host has. Blocks. Any thread.
void CopyNow(int gpu, std::byte* to, const std::byte* from, size_t bytes);

// 32-bit words seed, seed + 1, ... at a GPU's or the host's address. Blocks. Any thread.
void FillAt(Device where, std::byte* to, size_t bytes, uint32_t seed);
// The first word that is not what FillAt wrote; bytes / 4 when all are.
size_t FirstWrong(Device where, const std::byte* from, size_t bytes, uint32_t seed);

// A stream of a user's, whose work waits until Release.
class HeldStream {
 public:
  explicit HeldStream(int gpu);
  ~HeldStream();
  HeldStream(const HeldStream&) = delete;
  HeldStream& operator=(const HeldStream&) = delete;
  void* handle() const { return stream_; }
  // What is queued from now on waits for Release.
  void Hold();
  void Release();
  void Copy(std::byte* to, const std::byte* from, size_t bytes);
  void Synchronize();

 private:
  const int gpu_;
  gpu::abi::Stream stream_ = nullptr;
  volatile uint32_t* word_ = nullptr;  // page-locked
  gpu::abi::Address address_ = 0;
};

// Runs a kernel on the GPU that writes to no memory: nothing works in its context any more.
void Fault(int gpu);

// How a copy of the driver's own compares: microseconds of each of `times` copies on a stream of
// the GPU's, waited for as CUDA's manual says (an event, polled).
std::vector<double> RawCopies(int gpu, std::byte* to, const std::byte* from, size_t bytes,
                              int times);

}  // namespace verbena::gpu_test
