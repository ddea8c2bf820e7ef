#include "rpc/gpu/readiness.h"

#include <vector>

#include "rpc/gpu/cuda_device.h"
#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

TEST_CASE("the end of a stream's work is a word that it writes", "[gpu][order]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  const abi::Stream stream = cuda.MakeStream(1);  // of another GPU
  cuda.Launch(stream, nullptr, true);
  const auto after = gpu->Record({stream});
  REQUIRE(after.ok());
  cuda.Run();
  CHECK_FALSE((*after)->ready());
  CHECK((*after)->Look().ok());
  cuda.ReleaseKernels();
  cuda.Run();
  CHECK((*after)->ready());
  CHECK(cuda.contexts == std::vector<int>{1, 0});
  CHECK(cuda.calls["cuEventRecord"] == 0);
}

TEST_CASE("a word is not used again before its stream has written it", "[gpu][order]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  const abi::Stream slow = cuda.MakeStream(0), quick = cuda.MakeStream(0);
  cuda.Launch(slow, nullptr, true);
  // More than a page of them, all dropped before they are written.
  for (int i = 0; i < 1500; ++i) REQUIRE(gpu->Record({slow}).ok());
  CHECK(cuda.calls["cuMemHostAlloc"] == 2);
  const auto after = *gpu->Record({quick});
  cuda.ReleaseKernels();
  for (int i = 0; i < 1500; ++i) {
    CHECK_FALSE(after->ready());
    cuda.Run(1);
    if (after->ready()) break;  // the quick one's turn
  }
  cuda.Run();
  CHECK(after->ready());
  // Now they are.
  std::vector<memory::ReadinessRef> kept;
  for (int i = 0; i < 2000; ++i) kept.push_back(*gpu->Record({quick}));
  CHECK(cuda.calls["cuMemHostAlloc"] == 2);
  for (const auto& each : kept) CHECK_FALSE(each->ready());
  cuda.Run();
  for (const auto& each : kept) CHECK(each->ready());
}

TEST_CASE("a GPU that failed is found out by who waits for its work", "[gpu][order]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  const abi::Stream stream = cuda.MakeStream(0);
  cuda.Launch(stream, nullptr, true);
  const auto after = *gpu->Record({stream});
  cuda.Fail("cuStreamQuery", abi::kLaunchFailed, true);
  CHECK(absl::IsAborted(after->Look()));
  CHECK(absl::IsAborted(gpu->health()));
  cuda.Fail("cuStreamWriteValue32_v2", abi::kUnknown);
  CHECK(absl::IsInternal(gpu->Record({stream}).status()));
  CHECK(gpu->Record({stream}).ok());
}

TEST_CASE("only on its own thread the per-thread default stream is what was meant",
          "[gpu][order]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  const absl::Status refused = gpu->CheckOrder({reinterpret_cast<void*>(2)});
  CHECK(absl::IsInvalidArgument(refused));
  CHECK(refused.message() ==
        "the per-thread default stream means another stream on each thread: make a stream");
  for (void* const good : {static_cast<void*>(nullptr), reinterpret_cast<void*>(1),
                           static_cast<void*>(cuda.MakeStream(0))}) {
    CHECK(gpu->CheckOrder({good}).ok());
  }
}

}  // namespace
}  // namespace verbena::gpu
