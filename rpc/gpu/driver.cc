#include "rpc/gpu/driver.h"

#include <dlfcn.h>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace verbena::gpu {
namespace {

absl::StatusCode CodeOf(abi::Result result) {
  switch (result) {
    case abi::kOutOfMemory:
      return absl::StatusCode::kResourceExhausted;
    case abi::kNotPermitted:
      return absl::StatusCode::kPermissionDenied;
    case abi::kNotSupported:
    case abi::kPeerAccessUnsupported:
      return absl::StatusCode::kUnimplemented;
    case abi::kEccUncorrectable:
    case abi::kNvlinkUncorrectable:
    case abi::kContained:
      return absl::StatusCode::kDataLoss;
    default:
      if (IsOfCapture(result)) return absl::StatusCode::kFailedPrecondition;
      return IsSticky(result) ? absl::StatusCode::kAborted : absl::StatusCode::kInternal;
  }
}

// Why there is nothing to use, from cuInit or cuDeviceGetCount.
absl::Status NoGpus(const Driver& driver, abi::Result result, absl::string_view what) {
  const absl::Status status = StatusOf(driver, result, what);
  if (result == abi::kStubLibrary) {
    return absl::FailedPreconditionError(
        absl::StrCat(status.message(), " (the toolkit's stub was found instead of the driver)"));
  }
  if (result == abi::kNoDevice) return absl::UnavailableError(status.message());
  return absl::FailedPreconditionError(status.message());
}

absl::StatusOr<const Driver*> LoadOnce() {
  static Driver driver;
  absl::StatusOr<Driver> loaded = LoadDriverFrom("libcuda.so.1");
  if (!loaded.ok()) return loaded.status();
  driver = *loaded;
  if (const abi::Result r = driver.cuInit(0); r != abi::kSuccess) {
    return NoGpus(driver, r, "cuda: cuInit");
  }
  int count = 0;
  if (const abi::Result r = driver.cuDeviceGetCount(&count); r != abi::kSuccess) {
    return NoGpus(driver, r, "cuda: cuDeviceGetCount");
  }
  if (count == 0) return absl::UnavailableError("cuda: the driver shows no GPU to this process");
  return &driver;
}

}  // namespace

absl::StatusOr<const Driver*> LoadDriver() {
  static const auto* const loaded = new absl::StatusOr<const Driver*>(LoadOnce());
  return *loaded;
}

absl::StatusOr<Driver> LoadDriverFrom(const char* file) {
  void* const library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    const char* const why = dlerror();
    const absl::string_view text = why == nullptr ? file : why;
    // One that lacks a library of its own names that.
    const bool none =
        absl::StartsWith(text, file) && absl::EndsWith(text, "No such file or directory");
    if (none) return absl::UnavailableError(absl::StrCat("cuda: no driver: ", text));
    return absl::FailedPreconditionError(absl::StrCat("cuda: the driver does not load: ", text));
  }
  Driver driver;
  const char* missing = nullptr;
#define VERBENA_FIND(name, parameters) \
  driver.name = reinterpret_cast<decltype(driver.name)>(dlsym(library, #name));
#define VERBENA_NEED(name, parameters) \
  if (driver.name == nullptr) missing = #name;
  VERBENA_DRIVER_FUNCTIONS(VERBENA_FIND)
  VERBENA_DRIVER_FUNCTIONS(VERBENA_NEED)
  VERBENA_DRIVER_FUNCTIONS_MAYBE(VERBENA_FIND)
#undef VERBENA_FIND
#undef VERBENA_NEED
  if (missing == nullptr) return driver;
  dlclose(library);
  return absl::FailedPreconditionError(
      absl::StrCat("cuda: the driver in ", file, " has no ", missing, "; 11.4 or later has"));
}

absl::Status StatusOf(const Driver& driver, abi::Result result, absl::string_view what) {
  if (result == abi::kSuccess) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  driver.cuGetErrorName(result, &name);
  driver.cuGetErrorString(result, &text);
  return absl::Status(CodeOf(result),
                      absl::StrCat(what, ": ", name == nullptr ? "error " : name,
                                   name == nullptr ? absl::StrCat(result) : "",
                                   text == nullptr ? "" : ", ", text == nullptr ? "" : text));
}

bool IsOfCapture(abi::Result result) {
  return result >= abi::kStreamCaptureUnsupported && result <= abi::kStreamCaptureWrongThread;
}

bool IsSticky(abi::Result result) {
  switch (result) {
    case abi::kEccUncorrectable:
    case abi::kNvlinkUncorrectable:
    case abi::kContained:
    case abi::kIllegalAddress:
      return true;
    default:  // kHardwareStackError to kLaunchFailed: the ways in which a kernel can fault
      return result >= abi::kHardwareStackError && result <= abi::kLaunchFailed;
  }
}

}  // namespace verbena::gpu
