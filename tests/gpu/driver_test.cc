#include "rpc/gpu/driver.h"

#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

TEST_CASE("a machine without a driver says so", "[gpu][driver]") {
  const auto none = LoadDriverFrom("libcuda-that-is-not-there.so.1");
  CHECK(absl::IsUnavailable(none.status()));
  CHECK(std::string(none.status().message()).find("libcuda-that-is-not-there") !=
        std::string::npos);
  // One that is there and does not load.
  const auto broken = LoadDriverFrom("/proc/self/status");
  CHECK(absl::IsFailedPrecondition(broken.status()));
  CHECK(std::string(broken.status().message()).find("does not load: /proc/self/status") !=
        std::string::npos);
  // A library that is no driver: the first function is missing.
  const auto other = LoadDriverFrom("libc.so.6");
  CHECK(absl::IsFailedPrecondition(other.status()));
  // The real one is there or not; either way it is said at once, and the same each time.
  CHECK(LoadDriver().status() == LoadDriver().status());
}

TEST_CASE("errors of the driver are typed and name what was done", "[gpu][driver]") {
  const Driver& table = FakeDriver::Reset(1).table();
  CHECK(StatusOf(table, abi::kSuccess, "x").ok());
  CHECK(StatusOf(table, abi::kOutOfMemory, "cuda:3: allocating").message() ==
        "cuda:3: allocating: CUDA_ERROR_OUT_OF_MEMORY, as told");
  CHECK(absl::IsResourceExhausted(StatusOf(table, abi::kOutOfMemory, "x")));
  CHECK(absl::IsPermissionDenied(StatusOf(table, abi::kNotPermitted, "x")));
  CHECK(absl::IsUnimplemented(StatusOf(table, abi::kNotSupported, "x")));
  CHECK(absl::IsUnimplemented(StatusOf(table, abi::kPeerAccessUnsupported, "x")));
  CHECK(absl::IsDataLoss(StatusOf(table, abi::kEccUncorrectable, "x")));
  CHECK(absl::IsDataLoss(StatusOf(table, abi::kNvlinkUncorrectable, "x")));
  CHECK(absl::IsAborted(StatusOf(table, abi::kIllegalAddress, "x")));
  CHECK(absl::IsInternal(StatusOf(table, abi::kUnknown, "x")));
  CHECK(IsSticky(abi::kLaunchFailed));
  CHECK(IsSticky(abi::kEccUncorrectable));
  CHECK_FALSE(IsSticky(abi::kOutOfMemory));
  CHECK_FALSE(IsSticky(abi::kNotReady));
}

}  // namespace
}  // namespace verbena::gpu
