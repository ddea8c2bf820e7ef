// Copies of many small pieces: by one kernel where that may touch them, else one by one.
#include <map>
#include <vector>

#include "rpc/gpu/copy_engine.h"
#include "rpc/gpu/cuda_device.h"
#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

using memory::CopyPiece;

constexpr auto kNever = [] { return false; };
constexpr size_t kMemoryBytes = 1 << 20;

std::byte* At(abi::Address address) { return reinterpret_cast<std::byte*>(address); }

// Memory of cuda:1, which cuda:0 has imported, and memory of cuda:0's own.
struct Fixture {
  Fixture() {
    source = cuda.Malloc(1, kMemoryBytes);
    to = cuda.Malloc(0, kMemoryBytes);
    for (size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<std::byte>(i * 7 + i / 251);
    cuda.Write(source, sent.data(), sent.size());
  }
  ~Fixture() {
    cuda.Run();
    engine.reset();
    if (mapping.base != nullptr) gpu->Release(mapping);
  }
  void Import() {
    const memory::Extent extent = (*peer->Describe(At(source), kMemoryBytes))[0];
    mapping = *gpu->Import(*peer->ExportTo(extent, memory::ExportWay::kHostPeer));
    cuda.calls.clear();
  }
  // `count` pieces of `bytes` from side by side to the places in reverse order.
  std::vector<CopyPiece> Pieces(const std::byte* from, size_t count, size_t bytes) const {
    std::vector<CopyPiece> pieces;
    for (size_t i = 0; i < count; ++i) {
      pieces.push_back({At(to) + (count - 1 - i) * bytes, from + i * bytes, bytes});
    }
    return pieces;
  }
  // Copies them and looks at every byte.
  void CopyAndSee(const std::vector<CopyPiece>& pieces, const std::byte* from) {
    bool ended = false;
    REQUIRE(engine->Copy(1, pieces, {}));
    while (engine->Poll(SIZE_MAX, kNever, [&](uint64_t, bool ok) { CHECK((ended = ok)); })) {
      cuda.Run();
    }
    CHECK(ended);
    std::vector<std::byte> seen(kMemoryBytes);
    cuda.Read(seen.data(), to, kMemoryBytes);
    size_t wrong = 0;
    for (const CopyPiece& piece : pieces) {
      const auto at = static_cast<size_t>(piece.to - At(to));
      const auto of = static_cast<size_t>(piece.from - from);
      wrong += !std::equal(seen.begin() + static_cast<ptrdiff_t>(at),
                           seen.begin() + static_cast<ptrdiff_t>(at + piece.bytes),
                           sent.begin() + static_cast<ptrdiff_t>(of));
    }
    CHECK(wrong == 0);
    CHECK(cuda.kernel_faults == 0);
    CHECK(cuda.wrong_context == 0);
  }

  FakeDriver& cuda = FakeDriver::Reset(2);
  std::unique_ptr<CudaDevice> gpu = *CudaDevice::Create(cuda.table(), 0);
  std::unique_ptr<CudaDevice> peer = *CudaDevice::Create(cuda.table(), 1);
  std::unique_ptr<memory::CopyEngine> engine = gpu->MakeCopyEngine();
  abi::Address source = 0, to = 0;
  memory::Mapping mapping;
  std::vector<std::byte> sent = std::vector<std::byte>(kMemoryBytes);
};

TEST_CASE("many small pieces from a peer's memory are a few kernels", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  f.CopyAndSee(f.Pieces(f.mapping.base, 600, 1008), f.mapping.base);
  CHECK(f.cuda.calls["cuLaunchKernel"] == 3);
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 0);
  // The pieces lie in two allocations, each of which is looked for once for each kernel.
  CHECK(f.cuda.calls["cuPointerGetAttributes"] <= 3);
}

TEST_CASE("pieces of any length are batched, where they begin on 16 bytes", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  std::vector<CopyPiece> pieces;
  for (size_t i = 0; i < 8; ++i) {
    pieces.push_back({At(f.to) + i * 4096, f.mapping.base + i * 4096, 1 + i * 500});
  }
  f.CopyAndSee(pieces, f.mapping.base);
  CHECK(f.cuda.calls["cuLaunchKernel"] == 1);
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 0);
  // One that does not is copied alone, and so are the two before it.
  f.cuda.calls.clear();
  pieces[2].from += 8;
  f.CopyAndSee(pieces, f.mapping.base);
  CHECK(f.cuda.calls["cuLaunchKernel"] == 1);
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 3);
}

TEST_CASE("few pieces, and large ones, are the copy engines' work", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  f.CopyAndSee(f.Pieces(f.mapping.base, 3, 4096), f.mapping.base);
  CHECK(f.cuda.calls["cuLaunchKernel"] == 0);
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 3);
}

TEST_CASE("a kernel is given nothing that it might not reach", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  // Another GPU's memory in the same process: the driver's copies know the way.
  f.CopyAndSee(f.Pieces(At(f.source), 8, 4096), At(f.source));
  CHECK(f.cuda.calls["cuLaunchKernel"] == 0);
  // Mapped without access for this GPU.
  const abi::Address foreign = f.cuda.Reserve(2 << 20);
  f.cuda.Map(foreign, 2 << 20, 1);
  f.cuda.Write(foreign, f.sent.data(), f.sent.size());
  f.CopyAndSee(f.Pieces(At(foreign), 8, 4096), At(foreign));
  CHECK(f.cuda.calls["cuLaunchKernel"] == 0);
  // Mapped by the user for this GPU.
  const abi::Address own = f.cuda.Reserve(2 << 20);
  f.cuda.Map(own, 2 << 20, 0);
  f.cuda.Write(own, f.sent.data(), f.sent.size());
  f.CopyAndSee(f.Pieces(At(own), 8, 4096), At(own));
  CHECK(f.cuda.calls["cuLaunchKernel"] == 1);
}

TEST_CASE("pieces that reach past their memory are refused one by one", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  std::vector<CopyPiece> pieces = f.Pieces(f.mapping.base, 8, 4096);
  pieces[7] = {At(f.to) + kMemoryBytes - 16, f.mapping.base, 4096};
  bool ended = false;
  REQUIRE(f.engine->Copy(1, pieces, {}));
  while (f.engine->Poll(SIZE_MAX, kNever, [&](uint64_t, bool ok) { ended = !ok; })) f.cuda.Run();
  CHECK(ended);
  CHECK(f.cuda.kernel_faults == 0);
}

TEST_CASE("the kernel is there from the first allocation on, and loaded once",
          "[gpu][copy][batch]") {
  Fixture f;
  CHECK(f.cuda.calls["cuModuleLoadData"] == 0);
  const absl::StatusOr<memory::Extent> extent = f.gpu->Allocate(4096);
  REQUIRE(extent.ok());
  CHECK(f.gpu->copy_kernel().loaded());
  CHECK(f.cuda.calls["cuModuleLoadData"] == 1);
  f.Import();
  CHECK(f.cuda.calls["cuModuleLoadData"] == 0);  // since then
  f.gpu->Free(*extent);
}

TEST_CASE("a driver that cannot load the kernel copies piece by piece", "[gpu][copy][batch]") {
  Fixture f;
  f.cuda.Fail("cuModuleLoadData", abi::kNotSupported);
  f.Import();
  f.CopyAndSee(f.Pieces(f.mapping.base, 8, 4096), f.mapping.base);
  CHECK(f.cuda.calls["cuLaunchKernel"] == 0);
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 8);
}

TEST_CASE("a kernel that the driver refuses fails its copy alone", "[gpu][copy][batch]") {
  Fixture f;
  f.Import();
  f.cuda.Fail("cuLaunchKernel", abi::kInvalidValue);
  std::map<uint64_t, bool> ended;
  REQUIRE(f.engine->Copy(1, f.Pieces(f.mapping.base, 8, 4096), {}));
  REQUIRE(f.engine->Copy(2, f.Pieces(f.mapping.base, 8, 4096), {}));
  while (f.engine->Poll(SIZE_MAX, kNever, [&](uint64_t tag, bool ok) { ended[tag] = ok; })) {
    f.cuda.Run();
  }
  CHECK(ended == std::map<uint64_t, bool>{{1, false}, {2, true}});
}

}  // namespace
}  // namespace verbena::gpu
