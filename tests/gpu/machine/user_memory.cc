#include "tests/gpu/machine/user_memory.h"

#include <dlfcn.h>

#include <chrono>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "rpc/base/check.h"

namespace verbena::gpu_test {
namespace {

using gpu::abi::Address;
using gpu::abi::Result;
using gpu::abi::Stream;

const gpu::Driver& Cuda() { return **gpu::LoadDriver(); }

// What a program calls and the library does not.
template <class F>
F* Function(const char* name) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  auto* const found = reinterpret_cast<F*>(dlsym(library, name));
  VERBENA_CHECK(found != nullptr, name);
  return found;
}

#define CUDA_CHECK(call)                                               \
  do {                                                                 \
    const absl::Status status_ = gpu::StatusOf(Cuda(), (call), #call); \
    VERBENA_CHECK(status_.ok(), status_.ToString());                   \
  } while (false)

Address At(const std::byte* pointer) { return reinterpret_cast<Address>(pointer); }

Buffer Wrap(Address base, size_t bytes, int gpu, Buffer::Release release) {
  return Buffer::Wrap(reinterpret_cast<void*>(base), bytes, std::move(release), Device::Cuda(gpu));
}

Buffer Malloc(int gpu, size_t bytes) {
  UseOn(gpu);
  Address base = 0;
  CUDA_CHECK(Function<Result(Address*, size_t)>("cuMemAlloc_v2")(&base, bytes));
  return Wrap(base, bytes, gpu, [base, gpu] {
    UseOn(gpu);
    // After a fault nothing is freed but with the process.
    (void)Function<Result(Address)>("cuMemFree_v2")(base);
  });
}

Buffer Pool(int gpu, size_t bytes) {
  UseOn(gpu);
  Address base = 0;
  CUDA_CHECK(Function<Result(Address*, size_t, Stream)>("cuMemAllocAsync")(&base, bytes, nullptr));
  CUDA_CHECK(Function<Result(Stream)>("cuStreamSynchronize")(nullptr));
  return Wrap(base, bytes, gpu, [base, gpu] {
    UseOn(gpu);
    CUDA_CHECK(Function<Result(Address, Stream)>("cuMemFreeAsync")(base, nullptr));
  });
}

// `across`: the border of both halves lies in the middle of it.
Buffer Virtual(int gpu, size_t bytes, bool across) {
  UseOn(gpu);
  constexpr size_t kUnit = 2 << 20;
  const size_t half = (bytes + kUnit - 1) / kUnit * kUnit;
  Address base = 0;
  CUDA_CHECK(Cuda().cuMemAddressReserve(&base, 2 * half, 0, 0, 0));
  gpu::abi::AllocationProperties how;
  how.handle_types = gpu::abi::kHandleTypePosix;
  how.location.id = gpu;
  gpu::abi::AccessDescription access;
  access.location.id = gpu;
  for (const Address at : {base, base + half}) {
    gpu::abi::Handle handle = 0;
    CUDA_CHECK(Cuda().cuMemCreate(&handle, half, &how, 0));
    CUDA_CHECK(Cuda().cuMemMap(at, half, 0, handle, 0));
    CUDA_CHECK(Cuda().cuMemRelease(handle));
  }
  CUDA_CHECK(Cuda().cuMemSetAccess(base, 2 * half, &access, 1));
  return Wrap(base + half - (across ? bytes / 2 : 0), bytes, gpu, [base, half, gpu] {
    UseOn(gpu);
    CUDA_CHECK(Cuda().cuMemUnmap(base, 2 * half));
    CUDA_CHECK(Cuda().cuMemAddressFree(base, 2 * half));
  });
}

Buffer Managed(int gpu, size_t bytes, Device as) {
  UseOn(gpu);
  constexpr unsigned kAttachGlobal = 1;
  Address base = 0;
  CUDA_CHECK(Function<Result(Address*, size_t, unsigned)>("cuMemAllocManaged")(&base, bytes,
                                                                               kAttachGlobal));
  return Buffer::Wrap(
      reinterpret_cast<void*>(base), bytes,
      [base, gpu] {
        UseOn(gpu);
        (void)Function<Result(Address)>("cuMemFree_v2")(base);
      },
      as);
}

Buffer Pinned(int gpu, size_t bytes) {
  UseOn(gpu);
  void* memory = nullptr;
  CUDA_CHECK(Cuda().cuMemHostAlloc(&memory, bytes, gpu::abi::kHostAllocPortable));
  return Buffer::Wrap(memory, bytes, [memory, gpu] {
    UseOn(gpu);
    (void)Cuda().cuMemFreeHost(memory);
  });
}

}  // namespace

void CopyNow(int gpu, std::byte* to, const std::byte* from, size_t bytes) {
  UseOn(gpu);
  CUDA_CHECK(Function<Result(Address, Address, size_t)>("cuMemcpy")(At(to), At(from), bytes));
  // Of pageable memory it returns once the driver has the bytes, not once the GPU has.
  CUDA_CHECK(Function<Result(Stream)>("cuStreamSynchronize")(nullptr));
}

void UseOn(int gpu) {
  static std::mutex mutex;
  static std::map<int, gpu::abi::Context> contexts;
  const std::lock_guard lock(mutex);
  gpu::abi::Context& context = contexts[gpu];
  if (context == nullptr) CUDA_CHECK(Cuda().cuDevicePrimaryCtxRetain(&context, gpu));
  CUDA_CHECK(Function<Result(gpu::abi::Context)>("cuCtxSetCurrent")(context));
}

Buffer UserMemory::Make(const std::string& kind, int gpu, size_t bytes) {
  if (kind == "malloc") return Malloc(gpu, bytes);
  if (kind == "pool") return Pool(gpu, bytes);
  if (kind == "virtual") return Virtual(gpu, bytes, false);
  if (kind == "segments") return Virtual(gpu, bytes, true);
  if (kind == "managed") return Managed(gpu, bytes, Device::Cuda(gpu));
  if (kind == "managed-host") return Managed(gpu, bytes, Device::Host());
  if (kind == "pinned") return Pinned(gpu, bytes);
  if (kind == "heap") {
    void* const memory = std::malloc(bytes);
    return Buffer::Wrap(memory, bytes, [memory] { std::free(memory); });
  }
  auto buffer = Buffer::Allocate(bytes, kind == "host" ? Device::Host() : Device::Cuda(gpu));
  VERBENA_CHECK(buffer.ok(), buffer.status().ToString());
  return *std::move(buffer);
}

void FillAt(Device where, std::byte* to, size_t bytes, uint32_t seed) {
  std::vector<uint32_t> words((bytes + 3) / 4);
  for (size_t i = 0; i < words.size(); ++i) words[i] = seed + static_cast<uint32_t>(i);
  if (where == Device::Host()) {
    std::memcpy(to, words.data(), bytes);
  } else {
    CopyNow(where.index(), to, reinterpret_cast<const std::byte*>(words.data()), bytes);
  }
}

size_t FirstWrong(Device where, const std::byte* from, size_t bytes, uint32_t seed) {
  std::vector<uint32_t> words((bytes + 3) / 4);
  auto* const host = reinterpret_cast<std::byte*>(words.data());
  if (where == Device::Host()) {
    std::memcpy(host, from, bytes);
  } else {
    CopyNow(where.index(), host, from, bytes);
  }
  for (size_t i = 0; i < words.size(); ++i) {
    const uint32_t right = seed + static_cast<uint32_t>(i);
    if (std::memcmp(&words[i], &right, std::min<size_t>(4, bytes - 4 * i)) != 0) return i;
  }
  return words.size();
}

HeldStream::HeldStream(int gpu) : gpu_(gpu) {
  UseOn(gpu_);
  CUDA_CHECK(Cuda().cuStreamCreateWithPriority(&stream_, gpu::abi::kStreamNonBlocking, 0));
  void* word = nullptr;
  CUDA_CHECK(Cuda().cuMemHostAlloc(&word, 64, gpu::abi::kHostAllocPortable));
  word_ = static_cast<uint32_t*>(word);
  *word_ = 0;
  CUDA_CHECK(Cuda().cuMemHostGetDevicePointer_v2(&address_, word, 0));
}

HeldStream::~HeldStream() {
  Release();
  Synchronize();
  CUDA_CHECK(Cuda().cuStreamDestroy_v2(stream_));
  CUDA_CHECK(Cuda().cuMemFreeHost(const_cast<uint32_t*>(word_)));
}

void HeldStream::Hold() {
  UseOn(gpu_);
  constexpr unsigned kAtLeast = 0;
  CUDA_CHECK(Function<Result(Stream, Address, uint32_t, unsigned)>("cuStreamWaitValue32_v2")(
      stream_, address_, *word_ + 1, kAtLeast));
}

void HeldStream::Release() { *word_ = *word_ + 1; }

void HeldStream::Copy(std::byte* to, const std::byte* from, size_t bytes) {
  UseOn(gpu_);
  CUDA_CHECK(Cuda().cuMemcpyAsync(At(to), At(from), bytes, stream_));
}

void HeldStream::Synchronize() {
  CUDA_CHECK(Function<Result(Stream)>("cuStreamSynchronize")(stream_));
}

void Fault(int gpu) {
  UseOn(gpu);
  constexpr char kKernel[] =
      ".version 6.4\n.target sm_50\n.address_size 64\n"
      ".visible .entry fault() {\n"
      "  .reg .b64 %at;\n  .reg .b32 %value;\n"
      "  mov.u64 %at, 16;\n  mov.u32 %value, 1;\n"
      "  st.global.u32 [%at], %value;\n  ret;\n}\n";
  void *module = nullptr, *kernel = nullptr;
  CUDA_CHECK(Function<Result(void**, const void*)>("cuModuleLoadData")(&module, kKernel));
  CUDA_CHECK(Function<Result(void**, void*, const char*)>("cuModuleGetFunction")(&kernel, module,
                                                                                 "fault"));
  using Launch = Result(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        Stream, void**, void**);
  CUDA_CHECK(
      Function<Launch>("cuLaunchKernel")(kernel, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
  // What is begun before the fault is seen may still end well.
  VERBENA_CHECK(Function<Result(Stream)>("cuStreamSynchronize")(nullptr) != 0, "no fault");
}

std::vector<double> RawCopies(int gpu, std::byte* to, const std::byte* from, size_t bytes,
                              int times) {
  UseOn(gpu);
  Stream stream = nullptr;
  gpu::abi::Event event = nullptr;
  CUDA_CHECK(Cuda().cuStreamCreateWithPriority(&stream, gpu::abi::kStreamNonBlocking, 0));
  CUDA_CHECK(Cuda().cuEventCreate(&event, gpu::abi::kEventDisableTiming));
  std::vector<double> microseconds;
  for (int i = 0; i < times; ++i) {
    const auto start = std::chrono::steady_clock::now();
    CUDA_CHECK(Cuda().cuMemcpyAsync(At(to), At(from), bytes, stream));
    CUDA_CHECK(Cuda().cuEventRecord(event, stream));
    Result r;
    while ((r = Cuda().cuEventQuery(event)) == gpu::abi::kNotReady) {
    }
    CUDA_CHECK(r);
    microseconds.push_back(
        std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start)
            .count());
  }
  CUDA_CHECK(Cuda().cuEventDestroy_v2(event));
  CUDA_CHECK(Cuda().cuStreamDestroy_v2(stream));
  return microseconds;
}

}  // namespace verbena::gpu_test
