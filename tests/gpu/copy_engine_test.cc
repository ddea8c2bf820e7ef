// Copies that begin or end on a GPU, on streams whose work is done when the test says so.
#include "rpc/gpu/copy_engine.h"

#include <map>
#include <thread>
#include <vector>

#include "rpc/gpu/cuda_device.h"
#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

using memory::CopyPiece;
using memory::StreamOrder;

constexpr auto kNever = [] { return false; };

std::byte* At(abi::Address address) { return reinterpret_cast<std::byte*>(address); }
std::vector<std::byte> Pattern(size_t bytes, int seed) {
  std::vector<std::byte> made(bytes);
  for (size_t i = 0; i < bytes; ++i) made[i] = static_cast<std::byte>(i * 7 + i / 251 + seed);
  return made;
}

struct Fixture {
  explicit Fixture(int gpus = 1)
      : cuda(FakeDriver::Reset(gpus)),
        gpu(*CudaDevice::Create(cuda.table(), 0)),
        engine(gpu->MakeCopyEngine()) {}
  ~Fixture() {
    cuda.ReleaseKernels();
    cuda.Run();
    engine.reset();
  }
  bool Copy(uint64_t tag, std::byte* to, const std::byte* from, size_t bytes,
            abi::Stream stream = nullptr) {
    const CopyPiece piece{to, from, bytes};
    return engine->Copy(tag, {&piece, 1}, StreamOrder{stream});
  }
  bool Poll(size_t budget = SIZE_MAX) {
    return engine->Poll(budget, kNever,
                        [this](uint64_t tag, bool ok) { CHECK(ended.emplace(tag, ok).second); });
  }
  void Finish() {
    while (Poll()) cuda.Run();
  }

  FakeDriver& cuda;
  std::unique_ptr<CudaDevice> gpu;
  std::unique_ptr<memory::CopyEngine> engine;
  std::map<uint64_t, bool> ended;
};

TEST_CASE("a copy between GPUs ends when its stream has done it, and not before", "[gpu][copy]") {
  Fixture f(2);
  constexpr size_t kBytes = 300000;
  const abi::Address from = f.cuda.Malloc(1, kBytes + 3), to = f.cuda.Malloc(0, kBytes + 3);
  const auto sent = Pattern(kBytes + 3, 1);
  f.cuda.Write(from, sent.data(), sent.size());
  REQUIRE(f.Copy(5, At(to) + 1, At(from) + 3, kBytes));
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  // The bytes are there, the word is not.
  f.cuda.Run(1);
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  f.cuda.Run();
  CHECK_FALSE(f.Poll());
  CHECK(f.ended == std::map<uint64_t, bool>{{5, true}});
  std::vector<std::byte> seen(kBytes);
  f.cuda.Read(seen.data(), to + 1, kBytes);
  CHECK(std::equal(seen.begin(), seen.end(), sent.begin() + 3));
  // Nobody asked the driver how far it is, and no other context was made.
  CHECK(f.cuda.calls["cuStreamQuery"] == 0);
  CHECK(f.cuda.calls["cuEventQuery"] == 0);
  CHECK(f.cuda.contexts == std::vector<int>{1, 0});
  CHECK(f.cuda.wrong_context == 0);
}

TEST_CASE("a small copy that is alone ends with its event", "[gpu][copy]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  const auto sent = Pattern(64, 5);
  f.cuda.Write(from, sent.data(), 64);
  REQUIRE(f.Copy(1, At(to), At(from), 64));
  f.cuda.Run(1);  // the bytes are there
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  f.cuda.Run();
  CHECK_FALSE(f.Poll());
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}});
  CHECK(f.cuda.calls["cuEventQuery"] == 2);
  CHECK(f.cuda.calls["cuStreamWriteValue32_v2"] == 0);
  // One that comes before it has ended has the word.
  REQUIRE(f.Copy(2, At(to), At(from), 64));
  REQUIRE(f.Copy(3, At(to), At(from), 64));
  CHECK(f.cuda.calls["cuStreamWriteValue32_v2"] == 1);
  CHECK(f.cuda.calls["cuEventRecord"] == 2);
  f.Finish();
  CHECK(f.ended.size() == 3);
}

TEST_CASE("a small copy that takes long is not asked for again and again", "[gpu][copy]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  REQUIRE(f.Copy(1, At(to), At(from), 64));
  for (int i = 0; i < 1000; ++i) REQUIRE(f.Poll());
  CHECK(f.cuda.calls["cuEventQuery"] < 200);
  CHECK(f.cuda.calls["cuStreamWriteValue32_v2"] == 1);
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}});
  // A fault is said by the event too.
  REQUIRE(f.Copy(2, At(to), At(from), 64));
  f.cuda.Fail("cuEventQuery", abi::kIllegalAddress, true);
  CHECK_FALSE(f.Poll());
  CHECK(f.ended.at(2) == false);
  CHECK(absl::IsAborted(f.gpu->health()));
}

TEST_CASE("an event that cannot be recorded fails its copy, once that is over", "[gpu][copy]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  f.cuda.Fail("cuEventRecord", abi::kOutOfMemory);
  REQUIRE(f.Copy(1, At(to), At(from), 64));
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, false}});
  REQUIRE(f.Copy(2, At(to), At(from), 64));
  f.Finish();
  CHECK(f.ended.at(2) == true);
}

TEST_CASE("what lies where the last copies did is not asked about again", "[gpu][copy]") {
  Fixture f(2);
  const abi::Address from = f.cuda.Malloc(1, 4096), to = f.cuda.Malloc(0, 4096);
  std::vector<std::byte> host(64);
  REQUIRE(f.Copy(1, At(to), At(from), 64));
  f.Finish();
  const auto asked = [&] { return f.cuda.calls["cuPointerGetAttributes"]; };
  int before = asked();
  REQUIRE(f.Copy(2, At(to) + 64, At(from) + 100, 64));
  REQUIRE(f.Copy(3, At(to) + 4032, At(from) + 4032, 64));
  CHECK(asked() == before);
  // Beyond the end is somewhere else, and host memory is looked at each time.
  REQUIRE(f.Copy(4, At(to) + 4032, At(from), 65));
  CHECK(asked() > before);
  f.Finish();
  before = asked();
  REQUIRE(f.Copy(5, host.data(), At(from), 64));
  REQUIRE(f.Copy(6, At(to), At(from), 64));
  f.Finish();
  CHECK(asked() > before);
  // Freed, it is no GPU's any more: the driver says so.
  f.cuda.Free(from);
  REQUIRE(f.Copy(7, At(to), At(from), 64));
  f.Finish();
  CHECK(f.ended ==
        std::map<uint64_t, bool>{
            {1, true}, {2, true}, {3, true}, {4, false}, {5, true}, {6, true}, {7, false}});
}

TEST_CASE("page-locked memory is copied to and from directly", "[gpu][copy]") {
  Fixture f;
  const abi::Address memory = f.cuda.Malloc(0, 4096);
  void* pinned = nullptr;
  const auto context = f.gpu->context().Get();
  {
    const InContext in(f.cuda.table(), *context);
    REQUIRE(f.cuda.table().cuMemHostAlloc(&pinned, 8192, abi::kHostAllocPortable) == 0);
  }
  auto* const host = static_cast<std::byte*>(pinned);
  const auto sent = Pattern(4096, 2);
  std::copy(sent.begin(), sent.end(), host);
  REQUIRE(f.Copy(1, At(memory), host, 4096));
  REQUIRE(f.Copy(2, host + 4096, At(memory), 4096));
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}, {2, true}});
  CHECK(std::equal(sent.begin(), sent.end(), host + 4096));
  CHECK(f.cuda.calls["cuMemcpyAsync"] == 2);
}

TEST_CASE("managed memory is copied to and from as a GPU's is, wherever it is", "[gpu][copy]") {
  Fixture f;
  const abi::Address managed = f.cuda.Malloc(0, 4096, MemoryKind::kManaged);
  const abi::Address memory = f.cuda.Malloc(0, 4096);
  const auto sent = Pattern(4096, 4);
  std::vector<std::byte> seen(4096);
  f.cuda.memories_[managed].host = GENERATE(false, true);
  REQUIRE(f.Copy(1, At(managed), sent.data(), 4096));
  REQUIRE(f.Copy(2, At(memory), At(managed), 4096));
  REQUIRE(f.Copy(3, At(managed), At(memory), 4096));
  REQUIRE(f.Copy(4, seen.data(), At(managed), 4096));
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}, {2, true}, {3, true}, {4, true}});
  CHECK(seen == sent);
}

TEST_CASE("other host memory goes through stages, at the poll's budget", "[gpu][copy]") {
  Fixture f;
  const size_t bytes = (3 << 20) + 77;
  const abi::Address memory = f.cuda.Malloc(0, bytes + 9);
  const auto sent = Pattern(bytes, 3);
  std::vector<std::byte> seen(bytes + 2);
  REQUIRE(f.Copy(1, At(memory) + 9, sent.data(), bytes));
  REQUIRE(f.Copy(2, seen.data() + 1, At(memory) + 9, bytes));
  // Without a budget the CPU does nothing.
  CHECK(f.Poll(0));
  CHECK(f.cuda.pending() == 0);
  // With a little it fills one stage: a copy and its word.
  CHECK(f.Poll(1));
  CHECK(f.cuda.pending() == 2);
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}, {2, true}});
  CHECK(std::equal(sent.begin(), sent.end(), seen.begin() + 1));
  CHECK((seen.front() == std::byte{0} && seen.back() == std::byte{0}));
}

TEST_CASE("a copy waits for the work of a stream, and that stream's later work for it",
          "[gpu][copy][order]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  const abi::Stream user = f.cuda.MakeStream(0);
  const auto written = Pattern(64, 4);
  std::vector<std::byte> consumed(64);
  // A kernel of the user's still reads the destination; when it ends it also writes the source.
  f.cuda.Launch(
      user, [&] { f.cuda.Write(from, written.data(), 64); }, true);
  REQUIRE(f.Copy(1, At(to), At(from), 64, user));
  f.cuda.Launch(user, [&] { f.cuda.Read(consumed.data(), to, 64); });
  f.cuda.Run();
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  CHECK(consumed[5] == std::byte{0});
  f.cuda.ReleaseKernels();
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}});
  CHECK(consumed == written);
  CHECK(f.cuda.calls["cuStreamQuery"] == 0);
}

TEST_CASE("a copy that the driver refuses fails alone, after those before it", "[gpu][copy]") {
  Fixture f;
  const abi::Address a = f.cuda.Malloc(0, 64), b = f.cuda.Malloc(0, 64);
  std::vector<std::byte> host(64);
  REQUIRE(f.Copy(1, At(a), At(b), 64));
  REQUIRE(f.Copy(2, At(a), At(b), 65));                  // past the end
  REQUIRE(f.Copy(3, host.data(), host.data() + 32, 8));  // no GPU in it
  REQUIRE(f.Copy(4, At(a), nullptr, 8));
  REQUIRE(f.Copy(5, At(b), At(a), 64));
  REQUIRE(f.engine->Copy(6, {}, {}));
  CHECK(f.Poll());
  CHECK(f.ended.empty());
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{
                       {1, true}, {2, false}, {3, false}, {4, false}, {5, true}, {6, true}});
  CHECK(f.gpu->health().ok());
}

TEST_CASE("a fault of the GPU ends every copy, is said, and hangs nobody", "[gpu][copy]") {
  Fixture f;
  const abi::Address a = f.cuda.Malloc(0, 64), b = f.cuda.Malloc(0, 64);
  std::vector<std::byte> host(64);
  REQUIRE(f.Copy(1, At(a), At(b), 64));
  REQUIRE(f.Copy(2, host.data(), At(a), 64));  // by a stage
  // The stream stops; the driver says so when it is asked, which a poll does in time.
  f.cuda.Fail("cuStreamQuery", abi::kIllegalAddress, true);
  int polls = 0;
  while (f.Poll()) REQUIRE(++polls < 100000);
  CHECK(f.ended == std::map<uint64_t, bool>{{1, false}, {2, false}});
  CHECK(absl::IsAborted(f.gpu->health()));
  // What comes later fails at once.
  REQUIRE(f.Copy(3, At(a), At(b), 64));
  CHECK_FALSE(f.Poll());
  CHECK(f.ended.at(3) == false);
}

TEST_CASE("a copy whose word the driver refuses ends when it has been made, and later ones go on",
          "[gpu][copy]") {
  Fixture f;
  const bool more = GENERATE(false, true);
  const size_t bytes = 1 << 20;
  const abi::Address a = f.cuda.Malloc(0, bytes), b = f.cuda.Malloc(0, bytes);
  f.cuda.Fail("cuStreamWriteValue32_v2", abi::kOutOfMemory);
  REQUIRE(f.Copy(1, At(a), At(b), bytes));
  if (more) REQUIRE(f.Copy(2, At(a), At(b), bytes));
  for (int i = 0; i < 10000; ++i) REQUIRE(f.Poll());
  CHECK(f.ended.empty());
  f.Finish();
  CHECK(f.ended.at(1) == false);
  if (!more) REQUIRE(f.Copy(2, At(a), At(b), bytes));
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, false}, {2, true}});
  CHECK(f.gpu->health().ok());
}

TEST_CASE("a full GPU queue refuses and takes more after a poll", "[gpu][copy]") {
  Fixture f;
  const abi::Address a = f.cuda.Malloc(0, 64), b = f.cuda.Malloc(0, 64);
  for (uint32_t i = 0; i < limits::kCopiesInFlightMax; ++i) REQUIRE(f.Copy(i, At(a), At(b), 1));
  CHECK_FALSE(f.Copy(1000, At(a), At(b), 1));
  f.cuda.Run();
  CHECK_FALSE(f.Poll());
  CHECK(f.ended.size() == limits::kCopiesInFlightMax);
  CHECK(f.Copy(1000, At(a), At(b), 1));
  f.Finish();
}

TEST_CASE("an event that cannot be recorded is not tried again", "[gpu][copy][order]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  const abi::Stream stream = f.cuda.MakeStream(0);
  REQUIRE(f.Copy(1, At(to), At(from), 64, stream));
  f.Finish();
  const int made = f.cuda.calls["cuEventCreate"];
  f.cuda.Fail("cuEventRecord", abi::kInvalidContext);
  REQUIRE(f.Copy(2, At(to), At(from), 64, stream));
  f.Finish();
  REQUIRE(f.Copy(3, At(to), At(from), 64, stream));
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}, {2, false}, {3, true}});
  CHECK(f.cuda.calls["cuEventCreate"] == made + 1);
}

TEST_CASE("a copy whose context cannot be entered is not made in another", "[gpu][copy]") {
  Fixture f;
  const abi::Address from = f.cuda.Malloc(0, 64), to = f.cuda.Malloc(0, 64);
  REQUIRE(f.Copy(1, At(to), At(from), 64));
  f.Finish();
  const int copies = f.cuda.calls["cuMemcpyAsync"] + f.cuda.calls["cuLaunchKernel"];
  f.cuda.Fail("cuCtxPushCurrent_v2", abi::kInvalidContext);
  REQUIRE(f.Copy(2, At(to), At(from), 64));
  f.Finish();
  CHECK(f.ended == std::map<uint64_t, bool>{{1, true}, {2, false}});
  CHECK(f.cuda.calls["cuMemcpyAsync"] + f.cuda.calls["cuLaunchKernel"] == copies);
  f.cuda.Fail("cuCtxPushCurrent_v2", abi::kInvalidContext);
  CHECK_FALSE(f.gpu->Allocate(4096).ok());
  f.cuda.Fail("cuCtxPushCurrent_v2", abi::kInvalidContext);
  const memory::Extent described = f.gpu->Describe(At(from), 64)->front();
  CHECK_FALSE(f.gpu->ExportTo(described, memory::ExportWay::kHostPeer).ok());
  CHECK(f.gpu->ExportTo(described, memory::ExportWay::kHostPeer).ok());
  CHECK(f.cuda.wrong_context == 0);
}

TEST_CASE("a GPU without memory for a stream fails copies, and takes them later", "[gpu][copy]") {
  Fixture f;
  const abi::Address a = f.cuda.Malloc(0, 64), b = f.cuda.Malloc(0, 64);
  f.cuda.Fail("cuStreamCreateWithPriority", abi::kOutOfMemory);
  REQUIRE(f.Copy(1, At(a), At(b), 64));
  CHECK_FALSE(f.Poll());
  CHECK(f.ended.at(1) == false);
  REQUIRE(f.Copy(2, At(a), At(b), 64));
  f.Finish();
  CHECK(f.ended.at(2) == true);
}

}  // namespace
}  // namespace verbena::gpu
