#include "examples/common/gpu.h"

#include <dlfcn.h>

#include <cstdlib>

#include "absl/strings/str_cat.h"
#include "verbena/gpu.h"
#include "verbena/status.h"

namespace verbena::examples {
namespace {

// The few functions of libcuda that this takes, under their own names; all return 0 for success.
struct Driver {
  int (*cuGetErrorName)(int, const char**);
  int (*cuDeviceGetCount)(int*);
  int (*cuDeviceGetName)(char*, int, int);
  int (*cuDevicePrimaryCtxRetain)(void**, int);
  int (*cuDevicePrimaryCtxRelease_v2)(int);
  int (*cuCtxSetCurrent)(void*);
  int (*cuModuleLoadData)(void**, const void*);
  int (*cuModuleUnload)(void*);
  int (*cuModuleGetFunction)(void**, void*, const char*);
  int (*cuStreamCreate)(void**, unsigned);
  int (*cuStreamSynchronize)(void*);
  int (*cuStreamDestroy_v2)(void*);
  int (*cuMemcpyDtoH_v2)(void*, unsigned long long, size_t);
  int (*cuMemcpyHtoD_v2)(unsigned long long, const void*, size_t);
  int (*cuLaunchKernel)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                        void*, void**, void**);
};
constexpr unsigned kStreamNonBlocking = 1;

// After UseGpus has found the driver.
const Driver& Cuda() {
  static const Driver driver = [] {
    Driver found{};
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    const auto find = [library](auto& function, const char* name) {
      function = reinterpret_cast<std::decay_t<decltype(function)>>(dlsym(library, name));
    };
#define VERBENA_FIND(name) find(found.name, #name)
    VERBENA_FIND(cuGetErrorName);
    VERBENA_FIND(cuDeviceGetCount);
    VERBENA_FIND(cuDeviceGetName);
    VERBENA_FIND(cuDevicePrimaryCtxRetain);
    VERBENA_FIND(cuDevicePrimaryCtxRelease_v2);
    VERBENA_FIND(cuCtxSetCurrent);
    VERBENA_FIND(cuModuleLoadData);
    VERBENA_FIND(cuModuleUnload);
    VERBENA_FIND(cuModuleGetFunction);
    VERBENA_FIND(cuStreamCreate);
    VERBENA_FIND(cuStreamSynchronize);
    VERBENA_FIND(cuStreamDestroy_v2);
    VERBENA_FIND(cuMemcpyDtoH_v2);
    VERBENA_FIND(cuMemcpyHtoD_v2);
    VERBENA_FIND(cuLaunchKernel);
#undef VERBENA_FIND
    return found;
  }();
  return driver;
}

absl::Status Check(int result, absl::string_view what) {
  if (result == 0) return absl::OkStatus();
  const char* name = nullptr;
  Cuda().cuGetErrorName(result, &name);
  return absl::InternalError(absl::StrCat(what, ": ", name == nullptr ? "an error" : name));
}

}  // namespace

absl::StatusOr<int> UseAllGpus() {
  VERBENA_RETURN_IF_ERROR(UseGpus());
  int count = 0;
  VERBENA_RETURN_IF_ERROR(Check(Cuda().cuDeviceGetCount(&count), "counting GPUs"));
  return count;
}

bool GpuRequired() {
  const char* const text = std::getenv("VERBENA_EXAMPLE_GPU");
  return text != nullptr && absl::string_view(text) == "required";
}

absl::StatusOr<std::unique_ptr<Gpu>> Gpu::Open(int number, const char* kernels) {
  VERBENA_RETURN_IF_ERROR(UseGpus({number}));
  const Driver& cuda = Cuda();
  std::unique_ptr<Gpu> gpu(new Gpu(number));
  char name[128] = "";
  VERBENA_RETURN_IF_ERROR(Check(cuda.cuDeviceGetName(name, sizeof name, number), "a GPU's name"));
  gpu->name_ = name;
  // The context that the CUDA runtime would take, and that Verbena takes.
  VERBENA_RETURN_IF_ERROR(
      Check(cuda.cuDevicePrimaryCtxRetain(&gpu->context_, number), "a GPU's context"));
  VERBENA_RETURN_IF_ERROR(Check(cuda.cuCtxSetCurrent(gpu->context_), "entering a context"));
  if (kernels != nullptr) {
    VERBENA_RETURN_IF_ERROR(
        Check(cuda.cuModuleLoadData(&gpu->module_, kernels), "compiling kernels"));
  }
  VERBENA_RETURN_IF_ERROR(
      Check(cuda.cuStreamCreate(&gpu->stream_, kStreamNonBlocking), "making a stream"));
  return gpu;
}

Gpu::~Gpu() {
  const Driver& cuda = Cuda();
  if (context_ == nullptr) return;
  cuda.cuCtxSetCurrent(context_);
  if (stream_ != nullptr) {
    cuda.cuStreamSynchronize(stream_);
    cuda.cuStreamDestroy_v2(stream_);
  }
  if (module_ != nullptr) cuda.cuModuleUnload(module_);
  cuda.cuDevicePrimaryCtxRelease_v2(number_);
}

absl::Status Gpu::LaunchOne(const char* kernel, unsigned blocks, unsigned threads,
                            void** arguments) const {
  const Driver& cuda = Cuda();
  VERBENA_RETURN_IF_ERROR(Check(cuda.cuCtxSetCurrent(context_), "entering a context"));
  void* function = nullptr;
  VERBENA_RETURN_IF_ERROR(Check(cuda.cuModuleGetFunction(&function, module_, kernel), kernel));
  return Check(
      cuda.cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_, arguments, nullptr),
      kernel);
}

absl::Status Gpu::Synchronize() const {
  const Driver& cuda = Cuda();
  VERBENA_RETURN_IF_ERROR(Check(cuda.cuCtxSetCurrent(context_), "entering a context"));
  return Check(cuda.cuStreamSynchronize(stream_), "work on a GPU");
}

absl::Status Gpu::CopyToHost(void* to, const std::byte* from, size_t bytes) const {
  const Driver& cuda = Cuda();
  VERBENA_RETURN_IF_ERROR(Synchronize());
  return Check(cuda.cuMemcpyDtoH_v2(to, reinterpret_cast<unsigned long long>(from), bytes),
               "copying to the host");
}

absl::Status Gpu::CopyFromHost(std::byte* to, const void* from, size_t bytes) const {
  const Driver& cuda = Cuda();
  VERBENA_RETURN_IF_ERROR(Synchronize());
  VERBENA_RETURN_IF_ERROR(
      Check(cuda.cuMemcpyHtoD_v2(reinterpret_cast<unsigned long long>(to), from, bytes),
            "copying to a GPU"));
  // Of pageable memory the driver returns once it has the bytes, not once the GPU has.
  return Check(cuda.cuStreamSynchronize(nullptr), "copying to a GPU");
}

}  // namespace verbena::examples
