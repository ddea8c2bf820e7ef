// What a graph that a user captures has to do with this library: nothing.
#include <map>
#include <vector>

#include "rpc/gpu/copy_engine.h"
#include "rpc/gpu/cuda_device.h"
#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

constexpr size_t kBytes = 4096;

std::byte* At(abi::Address address) { return reinterpret_cast<std::byte*>(address); }

struct Scene {
  Scene()
      : gpu(*CudaDevice::Create(cuda.table(), 0)),
        engine(gpu->MakeCopyEngine()),
        user(cuda.MakeStream(0)) {}
  ~Scene() {
    cuda.EndCapture();
    cuda.ReleaseKernels();
    cuda.Run();
    engine.reset();
  }
  void Copy(uint64_t tag, abi::Stream stream = nullptr) {
    const memory::CopyPiece piece{At(to), At(from), kBytes};
    REQUIRE(engine->Copy(tag, {&piece, 1}, {stream}));
  }
  bool Poll() {
    return engine->Poll(
        SIZE_MAX, [] { return false; }, [this](uint64_t tag, bool ok) { ended[tag] = ok; });
  }

  FakeDriver& cuda = FakeDriver::Reset(1);
  std::unique_ptr<CudaDevice> gpu;
  std::unique_ptr<memory::CopyEngine> engine;
  const abi::Stream user;
  const abi::Address from = cuda.Malloc(0, kBytes), to = cuda.Malloc(0, kBytes);
  std::map<uint64_t, bool> ended;
};

TEST_CASE("a graph that a user captures is not broken by what runs beside it", "[gpu][capture]") {
  Scene s;
  s.cuda.BeginCapture(s.user);
  // An engine begins, asks for a small copy's end, and in time for faults.
  s.Copy(1);
  for (int i = 0; i < 10000; ++i) REQUIRE(s.Poll());
  CHECK(s.cuda.calls["cuEventQuery"] > 0);
  CHECK(s.cuda.calls["cuStreamQuery"] > 0);
  // Others are waited for, and memory is made and given back.
  const abi::Stream other = s.cuda.MakeStream(0);
  CHECK(s.gpu->Record({other}).ok());
  const auto made = s.gpu->Allocate(kBytes);
  REQUIRE(made.ok());
  s.gpu->Free(*made);
  s.Copy(2, other);
  s.cuda.Run();
  while (s.Poll()) s.cuda.Run();
  CHECK(s.ended == std::map<uint64_t, bool>{{1, true}, {2, true}});
  CHECK(s.cuda.EndCapture());
  CHECK(s.gpu->health().ok());
}

TEST_CASE("nothing is queued on a stream that is being captured, and who asks is told",
          "[gpu][capture]") {
  Scene s;
  s.cuda.BeginCapture(s.user);
  CHECK(absl::IsFailedPrecondition(s.gpu->Record({s.user}).status()));
  s.Copy(1, s.user);
  s.Copy(2);
  while (s.Poll()) s.cuda.Run();
  CHECK(s.ended == std::map<uint64_t, bool>{{1, false}, {2, true}});
  CHECK(s.cuda.EndCapture());
  CHECK(s.gpu->Record({s.user}).ok());
  s.Copy(3, s.user);
  while (s.Poll()) s.cuda.Run();
  CHECK(s.ended.at(3));
}

TEST_CASE("a driver that for a graph's sake does not say how far a stream is ends no copy",
          "[gpu][capture]") {
  Scene s;
  s.Copy(1);
  for (const char* ask : {"cuEventQuery", "cuStreamQuery"}) {
    s.cuda.Fail(ask, abi::kStreamCaptureUnsupported, true);
  }
  for (int i = 0; i < 10000; ++i) REQUIRE(s.Poll());
  s.cuda.Run();
  CHECK_FALSE(s.Poll());
  CHECK(s.ended == std::map<uint64_t, bool>{{1, true}});
}

}  // namespace
}  // namespace verbena::gpu
