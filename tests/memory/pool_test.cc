#include "rpc/memory/pool.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "rpc/base/log.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

constexpr uint64_t kMiB = 1 << 20;

PoolOptions Small() {
  PoolOptions options;
  options.bytes_max = 64 * kMiB;
  options.first_slab_bytes = 2 * kMiB;
  options.slab_bytes_max = 8 * kMiB;
  options.large_bytes = 4 * kMiB;
  options.kept_bytes_max = 24 * kMiB;
  return options;
}

Block Take(SlabPool& pool, size_t bytes) {
  absl::StatusOr<Block> block = pool.Allocate(bytes);
  REQUIRE(block.ok());
  return *std::move(block);
}

TEST_CASE("blocks of every size are aligned and lie in their region", "[pool]") {
  SlabPool pool(Small());
  std::vector<Block> blocks;
  for (const size_t bytes :
       {0, 1, 63, 64, 65, 128, 2048, 2049, 4095, 4096, 4097, 100000, 1 << 20, 5 << 20}) {
    blocks.push_back(Take(pool, bytes));
    const Block& block = blocks.back();
    CHECK(block.bytes() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(block.data()) % (bytes >= 4096 ? 4096 : 64) == 0);
    CHECK(block.data() >= block.region()->base());
    CHECK(block.data() + bytes <= block.region()->base() + block.region()->bytes());
    CHECK(FindKnownRegion(block.data(), bytes, ::verbena::Device::Host()) == block.region());
    std::memset(block.data(), static_cast<int>(blocks.size()), bytes);
  }
  // Nothing was written over anything else.
  for (size_t i = 0; i < blocks.size(); ++i) {
    const absl::Span<const std::byte> written(blocks[i].data(), blocks[i].bytes());
    CHECK(std::all_of(written.begin(), written.end(),
                      [&](std::byte b) { return b == std::byte(i + 1); }));
  }
  blocks.clear();
  CHECK(pool.stats().used_bytes == 0);
}

TEST_CASE("each slab is said once in the log, with its pages", "[pool]") {
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  SetLogLevel(LogLevel::kInfo);
  {
    SlabPool pool(Small());
    const Block first = Take(pool, 100);
    const Block second = Take(pool, 100);
  }
  SetLogLevel(LogLevel::kWarning);
  SetLogSink({});
  REQUIRE(lines.size() == 1);
  CHECK_THAT(lines[0], Catch::ContainsSubstring("slab of 2 MiB on huge pages") ||
                           Catch::ContainsSubstring("slab of 2 MiB on small pages"));
}

TEST_CASE("memory comes back whole when its blocks die", "[pool]") {
  SlabPool pool(Small());
  for (int round = 0; round < 3; ++round) {
    std::vector<Block> blocks;
    for (int i = 0; i < 4096; ++i)
      blocks.push_back(Take(pool, 64 + static_cast<size_t>(i % 3) * 100));
    blocks.clear();
    Block all = Take(pool, 2 * kMiB);
    CHECK(pool.stats().slab_bytes == 2 * kMiB);
  }
  CHECK(pool.stats().slabs_made == 1);
}

TEST_CASE("a moved block is freed once", "[pool]") {
  SlabPool pool(Small());
  Block a = Take(pool, 100);
  std::byte* const data = a.data();
  Block b = std::move(a);
  CHECK_FALSE(a);
  CHECK(b.data() == data);
  a.Reset();
  CHECK(pool.stats().used_bytes == 128);
  b = Take(pool, 5000);
  CHECK(pool.stats().used_bytes == 8192);
  Block& same = b;
  b = std::move(same);
  CHECK(b);
  b.Reset();
  b.Reset();
  CHECK(pool.stats().used_bytes == 0);
}

TEST_CASE("the pool grows in doubling steps", "[pool]") {
  SlabPool pool(Small());
  std::vector<Block> blocks;
  for (int i = 0; i < 14; ++i) blocks.push_back(Take(pool, kMiB));
  CHECK(pool.stats().slabs_made == 3);
  CHECK(pool.stats().slab_bytes == 14 * kMiB);
}

TEST_CASE("a full pool says its limit and what is in use, and serves again later",
          "[pool][exhaustion]") {
  SlabPool pool(Small());
  std::vector<Block> blocks;
  absl::Status status;
  while (status.ok()) {
    absl::StatusOr<Block> block = pool.Allocate(kMiB);
    if (block.ok()) blocks.push_back(*std::move(block));
    status = block.status();
  }
  REQUIRE(absl::IsResourceExhausted(status));
  CHECK(blocks.size() == 64);
  const std::string text(status.message());
  CHECK(text.find("may hold 67108864") != std::string::npos);
  CHECK(text.find("67108864 of them in use") != std::string::npos);
  CHECK_FALSE(pool.TryAllocate(kMiB));
  // One block dies.
  // Expect: its memory is found at once, without growing.
  blocks.pop_back();
  CHECK(pool.TryAllocate(kMiB));
  CHECK(absl::IsResourceExhausted(pool.Allocate(SIZE_MAX).status()));
  CHECK(absl::IsResourceExhausted(pool.Allocate(uint64_t{1} << 60).status()));
}

TEST_CASE("a large block allocated again is not faulted in again", "[pool][large]") {
  SlabPool pool(Small());
  std::byte* data = nullptr;
  for (int round = 0; round < 5; ++round) {
    Block block = Take(pool, 20 * kMiB + 17);
    if (data != nullptr) CHECK(block.data() == data);
    data = block.data();
    CHECK(block.bytes() == 20 * kMiB + 17);
    CHECK(pool.stats().used_bytes == 22 * kMiB);
  }
  CHECK(pool.stats().slabs_made == 1);
  CHECK(pool.stats().kept_bytes == 22 * kMiB);
  // One that would waste more than a quarter gets its own.
  Block smaller = Take(pool, 10 * kMiB);
  CHECK(pool.stats().slabs_made == 2);
  CHECK(pool.TryAllocate(19 * kMiB));
}

TEST_CASE("kept slabs give way to the limits", "[pool][large]") {
  SlabPool pool(Small());
  { Block a = Take(pool, 10 * kMiB), b = Take(pool, 16 * kMiB); }
  // 26 MiB were free, 24 may be kept.
  // Expect: the one that was freed first is unmapped; blocks die in reverse order.
  CHECK(pool.stats().kept_bytes == 10 * kMiB);
  CHECK(pool.stats().slab_bytes == 10 * kMiB);
  // Kept memory never stands in the way of an allocation.
  Block whole = Take(pool, 60 * kMiB);
  CHECK(pool.stats().kept_bytes == 0);
  CHECK(pool.stats().slab_bytes == 60 * kMiB);
}

TEST_CASE("a reserved pool serves without growing", "[pool]") {
  SlabPool pool(Small());
  REQUIRE(pool.Reserve(20 * kMiB).ok());
  const uint64_t made = pool.stats().slabs_made;
  std::vector<Block> blocks;
  for (int i = 0; i < 20; ++i) {
    blocks.push_back(pool.TryAllocate(kMiB));
    REQUIRE(blocks.back());
  }
  CHECK(pool.stats().slabs_made == made);
  CHECK(absl::IsResourceExhausted(pool.Reserve(100 * kMiB)));
}

TEST_CASE("threads allocate and free each other's blocks", "[pool][threads]") {
  SlabPool pool(Small());
  constexpr int kThreads = 4, kSlots = 64;
  struct Slot {
    absl::Mutex mutex;
    Block block;
  };
  std::vector<Slot> slots(kSlots);
  std::atomic<bool> wrong{false};
  std::vector<std::thread> threads;
  for (unsigned id = 0; id < kThreads; ++id) {
    threads.emplace_back([&, id] {
      std::mt19937 random(id);
      for (int round = 0; round < 3000; ++round) {
        const size_t bytes = 8 + random() % (random() % 10 == 0 ? 300000 : 3000);
        absl::StatusOr<Block> made = pool.Allocate(bytes);
        if (!made.ok()) continue;
        const std::byte mark{static_cast<unsigned char>(random())};
        std::memset(made->data(), static_cast<int>(mark), bytes);
        Block old;
        {
          Slot& slot = slots[random() % kSlots];
          absl::MutexLock lock(&slot.mutex);
          old = std::move(slot.block);
          slot.block = *std::move(made);
        }
        if (old && old.data()[0] != old.data()[old.bytes() - 1]) wrong = true;
      }
    });
  }
  for (std::thread& t : threads) t.join();
  slots.clear();
  CHECK_FALSE(wrong);
  CHECK(pool.stats().used_bytes == 0);
}

TEST_CASE("the process's pools serve and take back", "[pool]") {
  absl::StatusOr<Block> block = AllocateBlock(3000);
  REQUIRE(block.ok());
  CHECK(PoolHere().stats().used_bytes >= 4096);
  CHECK(&PoolOfNode(12345) == &PoolOfNode(0));
  CHECK(&PoolOfNode(-1) == &PoolOfNode(0));
  CHECK(TryAllocateBlock(64));
}

TEST_CASE("the limit of all pools cannot be set too low, nor too late", "[pool]") {
  CHECK(absl::IsInvalidArgument(SetPoolBytesMax(1 << 20)));
  REQUIRE(AllocateBlock(1).ok());
  CHECK(absl::IsFailedPrecondition(SetPoolBytesMax(64 * kMiB)));
}

std::atomic<std::thread::id> setup_thread;
std::atomic<int> setup_jobs{0};

TEST_CASE("slabs are made on the setup thread", "[pool][setup]") {
  HelperThreads threads;
  threads.on_setup = [] { return std::this_thread::get_id() == setup_thread.load(); };
  threads.post_setup = [](Job job) {
    std::thread([job = std::move(job)]() mutable {
      setup_thread = std::this_thread::get_id();
      ++setup_jobs;
      std::move(job)();
    }).detach();
  };
  SetHelperThreads(threads);
  {
    SlabPool pool(Small());
    Block first = Take(pool, 100);
    CHECK(setup_jobs == 1);
    Block second = Take(pool, 100);
    CHECK(setup_jobs == 1);
  }
  SetHelperThreads(HelperThreads());
}

}  // namespace
}  // namespace verbena::memory
