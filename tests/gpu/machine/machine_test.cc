// Real GPUs: what is found, exported, imported and copied between processes is what was written.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <thread>
#include <utility>
#include <vector>

#include "rpc/gpu/cuda_device.h"
#include "tests/catch.h"
#include "tests/gpu/machine/reader.h"
#include "tests/gpu/machine/user_memory.h"
#include "verbena/gpu.h"
#include "verbena/verbena.h"

namespace verbena::gpu_test {
namespace {

TEST_CASE("memory of each kind arrives whole on every GPU and on the host", "[machine]") {
  Reader reader;
  uint32_t seed = 1;
  for (const char* memory : {"library", "malloc", "virtual", "segments", "host"}) {
    for (const uint64_t bytes : {1ull, 4096ull, 1000003ull, 40ull << 20}) {
      for (const uint64_t offset : {0ull, 12345ull}) reader.See(Of(memory, bytes, offset, ++seed));
    }
  }
}

TEST_CASE("memory of each kind arrives whole by tcp", "[machine][tcp]") {
  Reader reader({}, "tcp");
  uint32_t seed = 100;
  for (const char* memory : {"library", "malloc", "virtual", "segments", "pool", "host"}) {
    for (const uint64_t bytes : {1ull, 1000003ull, 40ull << 20}) {
      for (const uint64_t offset : {0ull, 12345ull}) reader.See(Of(memory, bytes, offset, ++seed));
    }
  }
  auto given = reader.Get(Of("malloc", 1 << 20));
  const auto by = [&](Path path) {
    return given.Fetch(given->tensor(), Placement(Device::Cuda(0)).RequirePath(path)).Get();
  };
  CHECK(by(Path::kPinnedStaging).ok());
  CHECK(absl::IsFailedPrecondition(by(Path::kNvlinkIpc).status()));
}

TEST_CASE("columns are packed by the GPU that fetches them", "[machine]") {
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    Reader reader({}, transport);
    constexpr size_t kRows = 3000, kBytes = 1024;
    reader.Get(Of("malloc", kRows * kBytes));
    ::gpu_test::Blocks blocks;
    blocks.set_count(kRows);
    blocks.set_block_bytes(kBytes);
    auto given = reader.stub.GiveBlocks(blocks).Get();
    REQUIRE(given.ok());
    auto all = given->Fetch((*given)->tensor(), Device::Host()).Get();
    REQUIRE(all.ok());
    // Such as a kernel copies, and odd ones.
    for (const auto& [begin, end] : {std::pair<int64_t, int64_t>{128, 256}, {101, 164}}) {
      const TensorSlice slice = TensorSlice().NextAll().Next(begin, end);
      const auto width = static_cast<size_t>(end - begin);
      for (int to = 0; to < Gpus(); ++to) {
        auto packed = given->Fetch((*given)->tensor(), slice, Device::Cuda(to)).Get();
        INFO("to " << to << ": " << packed.status().ToString());
        REQUIRE(packed.ok());
        std::vector<std::byte> seen(packed->bytes());
        REQUIRE(seen.size() == kRows * width);
        CopyNow(to, seen.data(), packed->data(), seen.size());
        size_t wrong = 0;
        for (size_t row = 0; row < kRows; ++row) {
          const std::byte* const from = all->data() + row * kBytes + static_cast<size_t>(begin);
          wrong += !std::equal(from, from + width, seen.data() + row * width);
        }
        CHECK(wrong == 0);
      }
    }
  }
}

TEST_CASE("managed and page-locked memory arrives whole, and goes to no other process",
          "[machine][managed]") {
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    Reader reader({}, transport);
    uint32_t seed = 300;
    for (const char* memory : {"managed", "managed-host", "pinned"}) {
      // Twice: the GPU, or the CPU, has had it in between.
      for (const uint64_t bytes : {1ull, 1000003ull, 1000003ull, 20ull << 20}) {
        reader.See(Of(memory, bytes, 12345, ++seed));
      }
    }
    auto given = reader.Get(Of("managed", 1 << 20));
    const auto by = [&](Path path) {
      return given.Fetch(given->tensor(), Placement(Device::Cuda(0)).RequirePath(path)).Get();
    };
    CHECK(by(Path::kPinnedStaging).ok());
    CHECK(absl::IsFailedPrecondition(by(Path::kSameDevice).status()));
    // And as destinations.
    auto from = reader.Get(Of("malloc", 1000003, 0, 7));
    for (const char* memory : {"managed", "managed-host", "pinned"}) {
      INFO(memory);
      Buffer into = UserMemory::Make(memory, Gpus() - 1, 1000003);
      const Device where = into.device();
      Tensor tensor = *Tensor::Wrap(into, kUInt8, Shape(1000003));
      auto fetched = from.Fetch(from->tensor(), Placement::Into(tensor)).Get();
      INFO(fetched.status().ToString());
      REQUIRE(fetched.ok());
      CHECK(FirstWrong(where, into.data(), into.bytes(), 7) == (into.bytes() + 3) / 4);
    }
  }
}

TEST_CASE("memory is READ as it is now, not as it was when it was mapped", "[machine]") {
  Reader reader;
  for (uint32_t seed = 0; seed < 20; ++seed) {
    reader.See(Of("malloc", 1 << 20, 0, seed * 77));
    reader.See(Of("library", 1 << 20, 0, seed * 91));
  }
}

TEST_CASE("memory that was freed and allocated again is not taken for what it was", "[machine]") {
  Reader reader;
  for (uint32_t seed = 0; seed < 5; ++seed) {
    for (const char* memory : {"malloc", "virtual", "library"}) {
      reader.See(Of(memory, 3 << 20, 0, seed * 1000));
    }
    REQUIRE(reader.stub.Free(Of("", 0)).Get().ok());
  }
}

TEST_CASE("tensors of this process are taken by the other", "[machine]") {
  Reader reader;
  reader.Get(Of("malloc", 4096));  // it is there
  for (const char* memory : {"library", "malloc", "virtual", "host", "heap"}) {
    for (int to = -1; to < Gpus(); ++to) {
      INFO(memory << " to " << to);
      const size_t bytes = 5000001;
      Buffer buffer = UserMemory::Make(memory, Gpus() - 1, bytes);
      FillAt(buffer.device(), buffer.mutable_data(), bytes, 5);
      Parcel<::gpu_test::Taken> taken;
      taken->set_gpu(to);
      taken->set_seed(5);
      taken.Attach(*taken->mutable_tensor(),
                   *Tensor::Wrap(buffer, kUInt8, Shape(static_cast<int64_t>(bytes))));
      auto seen = reader.stub.Take(taken).Get();
      INFO(seen.status().ToString());
      REQUIRE(seen.ok());
      CHECK(seen->right());
    }
  }
}

TEST_CASE("two processes exchange tensors both ways at once", "[machine]") {
  Reader reader;
  const size_t bytes = 64 << 20;
  auto given = reader.Get(Of("malloc", bytes, 0, 9));
  Buffer mine = UserMemory::Make("malloc", Gpus() - 1, bytes);
  FillAt(mine.device(), mine.mutable_data(), bytes, 4);
  std::atomic<int> right{0};
  std::thread there([&] {
    for (int i = 0; i < 5; ++i) {
      Parcel<::gpu_test::Taken> taken;
      taken->set_gpu(0);
      taken->set_seed(4);
      taken.Attach(*taken->mutable_tensor(),
                   *Tensor::Wrap(mine, kUInt8, Shape(static_cast<int64_t>(bytes))));
      auto seen = reader.stub.Take(taken).Get();
      right += seen.ok() && seen->right();
    }
  });
  for (int i = 0; i < 5; ++i) {
    const Device to = Device::Cuda(Gpus() - 1);
    auto tensor = given.Fetch(given->tensor(), to).Get();
    REQUIRE(tensor.ok());
    right += FirstWrong(to, tensor->data(), bytes, 9) == bytes / 4;
  }
  there.join();
  CHECK(right == 10);
}

TEST_CASE("an owner that is killed while it is read ends fetches, and the GPU goes on",
          "[machine]") {
  const size_t bytes = size_t{1} << 30;
  for (const char* memory : {"library", "malloc"}) {
    Reader reader;
    auto given = reader.Get(Of(memory, bytes));
    Tensor into = *Tensor::Empty(kUInt8, Shape(static_cast<int64_t>(bytes)), Device::Cuda(0));
    std::thread killer([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
      reader.owner.Kill();
    });
    absl::Status status;
    while (status.ok()) {
      status = given.Fetch(given->tensor(), Placement::Into(into)).Get().status();
    }
    killer.join();
    INFO(status.ToString());
    CHECK(absl::IsUnavailable(status));
  }
  Reader again;
  again.See(Of("malloc", 1 << 20));
}

TEST_CASE("the path of a fetch is what the GPUs are, and another is refused", "[machine]") {
  Reader reader;
  for (const char* memory : {"library", "malloc", "segments"}) {
    auto given = reader.Get(Of(memory, 1 << 20));
    for (int to = -1; to < Gpus(); ++to) {
      const Device where = to < 0 ? Device::Host() : Device::Cuda(to);
      const Path right = to < 0    ? Path::kDeviceCopy
                         : to == 0 ? Path::kSameDevice
                                   : Path::kNvlinkIpc;
      INFO(memory << " to " << to << ", right is " << PathName(right));
      CHECK(given.Fetch(given->tensor(), Placement(where).RequirePath(right)).Get().ok());
      const absl::Status status =
          given.Fetch(given->tensor(), Placement(where).RequirePath(Path::kGdrRead)).Get().status();
      CHECK(status.message() == "the path of these bytes is " + std::string(PathName(right)) +
                                    ", and gdr-read is required");
    }
  }
}

TEST_CASE("blocks arrive in the rows that a table names, and nowhere else", "[machine]") {
  Reader reader;
  for (const uint32_t block_bytes : {16u, 1008u, 1000u, 65536u, 2u << 20}) {
    constexpr uint32_t kCount = 40;
    const uint32_t seed = block_bytes + 1, untouched = 77;
    auto wanted = Of("malloc", uint64_t{block_bytes} * kCount, 0, seed);
    reader.Get(wanted);
    ::gpu_test::Blocks blocks;
    blocks.set_count(kCount);
    blocks.set_block_bytes(block_bytes);
    for (int to = -1; to < Gpus(); ++to) {
      INFO(block_bytes << " bytes to " << to);
      auto given = reader.stub.GiveBlocks(blocks).Get();
      REQUIRE(given.ok());
      const Device where = to < 0 ? Device::Host() : Device::Cuda(to);
      Tensor table = *Tensor::Empty(kUInt8, Shape(2 * kCount, block_bytes), where);
      FillAt(where, table.mutable_data(), table.bytes(), untouched);
      std::vector<int64_t> rows;
      for (uint32_t i = 0; i < kCount; ++i) rows.push_back(2 * ((i * 7) % kCount) + 1);
      REQUIRE(given->Fetch((*given)->tensor(), Placement::IntoRows(table, rows)).Get().ok());
      const uint32_t words = block_bytes / 4;
      size_t wrong = 0;
      for (uint32_t i = 0; i < kCount; ++i) {
        const std::byte* const row = table.data() + static_cast<size_t>(rows[i]) * block_bytes;
        const uint32_t before = untouched + static_cast<uint32_t>(rows[i] - 1) * words;
        wrong += FirstWrong(where, row, block_bytes, seed + i * words) != words;
        wrong += FirstWrong(where, row - block_bytes, block_bytes, before) != words;
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("small copies of every length are whole", "[machine]") {
  Reader reader;
  reader.See(Of("malloc", 4096));  // once it has imported something, a GPU has the kernel
  auto& device = static_cast<gpu::CudaDevice&>(**memory::FindDevice(Device::Cuda(0)));
  CHECK(device.copy_kernel().loaded());
  constexpr size_t kPlace = 4096, kCount = 600;
  Buffer from = UserMemory::Make("malloc", 0, kPlace * kCount);
  Buffer to = UserMemory::Make("library", 0, kPlace * kCount);
  FillAt(from.device(), from.mutable_data(), from.bytes(), 1);
  FillAt(to.device(), to.mutable_data(), to.bytes(), 0x80000000);
  std::vector<memory::CopyPiece> pieces;
  for (size_t i = 0; i < kCount; ++i) {
    const size_t other = (i * 7) % kCount;
    pieces.push_back({to.mutable_data() + i * kPlace, from.data() + other * kPlace, i * 5 + 1});
  }
  const auto engine = device.MakeCopyEngine();
  bool done = false;
  REQUIRE(engine->Copy(1, pieces, {}));
  while (engine->Poll(
      SIZE_MAX, [] { return false; }, [&](uint64_t, bool ok) { done = ok; })) {
  }
  REQUIRE(done);
  std::vector<std::byte> source(from.bytes()), seen(to.bytes());
  CopyNow(0, source.data(), from.data(), source.size());
  CopyNow(0, seen.data(), to.data(), seen.size());
  size_t wrong = 0;
  for (size_t i = 0; i < kCount; ++i) {
    const size_t bytes = pieces[i].bytes, other = (i * 7) % kCount;
    wrong += std::memcmp(&seen[i * kPlace], &source[other * kPlace], bytes) != 0;
    // What lies behind is as it was.
    std::vector<uint32_t> words(kPlace / 4);
    for (size_t w = 0; w < words.size(); ++w) {
      words[w] = 0x80000000 + static_cast<uint32_t>(i * words.size() + w);
    }
    const auto* const right = reinterpret_cast<const std::byte*>(words.data());
    wrong += std::memcmp(&seen[i * kPlace + bytes], right + bytes, kPlace - bytes) != 0;
  }
  CHECK(wrong == 0);
}

TEST_CASE("a GPU that is full is said, and the process goes on", "[machine]") {
  Gpus();
  const auto all = Buffer::Allocate(size_t{1} << 40, Device::Cuda(0));
  CHECK(absl::IsResourceExhausted(all.status()));
  CHECK(Buffer::Allocate(1 << 20, Device::Cuda(0)).ok());
}

TEST_CASE("memory that no process can import is staged, told and refusable", "[machine]") {
  Reader reader;
  uint32_t seed = 50;
  for (const uint64_t bytes : {1ull, 4096ull, 1000003ull, 40ull << 20}) {
    reader.See(Of("pool", bytes, 12345, ++seed));
  }
  auto given = reader.Get(Of("pool", 1 << 20));
  for (const Device to : {Device::Cuda(0), Device::Host()}) {
    CHECK(given.Fetch(given->tensor(), Placement(to).RequirePath(Path::kPinnedStaging)).Get().ok());
    CHECK(absl::IsFailedPrecondition(
        given.Fetch(given->tensor(), Placement(to).RequirePath(Path::kSameDevice)).Get().status()));
  }
  reader.See(Of("malloc", 4096));
}

TEST_CASE("a fault that stays is told by type, and the process goes on without its GPU",
          "[machine]") {
  Reader reader;
  reader.See(Of("malloc", 4096));
  REQUIRE(reader.stub.Fault(Of("", 0)).Get().ok());
  Parcel<::gpu_test::Taken> taken;
  taken->set_gpu(0);
  taken.Attach(*taken->mutable_tensor(),
               *Tensor::Wrap(*Buffer::Allocate(1 << 20), kUInt8, Shape(1 << 20)));
  const absl::Status status = reader.stub.Take(taken).Get().status();
  WARN("a fetch onto it: " << status.ToString());
  CHECK_FALSE(status.ok());
  CHECK(reader.stub.Free(Of("none", 0)).Get().ok());
  auto host = reader.stub.Give(Of("host", 4096)).Get();
  INFO(host.status().ToString());
  REQUIRE(host.ok());
  CHECK(host->Fetch((*host)->tensor(), Device::Cuda(0)).Get().ok());
  Reader again;
  again.See(Of("malloc", 4096));
}

TEST_CASE("an owner that sees other GPUs first is read all the same", "[machine]") {
  if (Gpus() < 2) return;
  Reader reader("CUDA_VISIBLE_DEVICES=1,0");
  for (const char* memory : {"library", "malloc"}) reader.See(Of(memory, 1 << 20, 64));
}

TEST_CASE("no context is made on a GPU that is not used", "[machine]") {
  if (Gpus() < 2) return;
  Reader reader;
  const auto contexts = [&] {
    auto seen = reader.stub.Free(Of("", 0), CallOptions().set_wait_for_ready(true)).Get();
    REQUIRE(seen.ok());
    return std::vector<bool>(seen->contexts().begin(), seen->contexts().end());
  };
  CHECK(contexts() == std::vector<bool>(static_cast<size_t>(Gpus()), false));
  ::gpu_test::Wanted wanted = Of("library", 4096);
  wanted.set_gpu(1);
  reader.See(wanted);
  std::vector<bool> only(static_cast<size_t>(Gpus()), false);
  only[1] = true;
  CHECK(contexts() == only);
}

}  // namespace
}  // namespace verbena::gpu_test
