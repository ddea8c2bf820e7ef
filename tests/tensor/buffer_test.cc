#include "verbena/buffer.h"

#include <atomic>
#include <cstring>
#include <thread>
#include <vector>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/tensor/buffer_memory.h"
#include "tests/catch.h"
#include "verbena/tensor.h"

namespace verbena {
namespace {

using internal::BufferAccess;

TEST_CASE("memory of a device is looked at each time that it is sent", "[buffer]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(21);
  const memory::Extent extent = *fake.Allocate(4096);
  const Buffer buffer = Buffer::Wrap(extent.base, 4096, nullptr, Device::Fake(21));
  const memory::RegionRef first = *BufferAccess::region(buffer);
  CHECK(*BufferAccess::region(buffer) == first);
  fake.Renumber(extent.base);  // freed, and the same addresses allocated again
  const memory::RegionRef second = *BufferAccess::region(buffer);
  CHECK(second->base() == first->base());
  CHECK(second->buffer_id() != first->buffer_id());
  fake.Free(extent);
  CHECK(absl::IsNotFound(BufferAccess::region(buffer).status()));
}

TEST_CASE("the last copy releases, once, wherever the copies went", "[buffer]") {
  int released = 0;
  std::byte memory[32];
  {
    Buffer outer;
    {
      const Buffer buffer = Buffer::Wrap(memory, sizeof(memory), [&] { ++released; });
      CHECK(buffer.use_count() == 1);
      absl::StatusOr<Buffer> part = buffer.Slice(8, 8);
      REQUIRE(part.ok());
      CHECK(part->data() == memory + 8);
      outer = *part;
      CHECK(buffer.use_count() == 3);
    }
    CHECK(released == 0);
    CHECK(outer.bytes() == 8);
  }
  CHECK(released == 1);
}

TEST_CASE("slices are checked against the buffer without overflow", "[buffer][hostile]") {
  std::byte memory[32];
  const Buffer buffer = Buffer::Wrap(memory, sizeof(memory), nullptr);
  CHECK(buffer.Slice(32, 0).ok());
  CHECK(absl::IsOutOfRange(buffer.Slice(33, 0).status()));
  CHECK(absl::IsOutOfRange(buffer.Slice(1, 32).status()));
  CHECK(absl::IsOutOfRange(buffer.Slice(8, SIZE_MAX).status()));
  CHECK(absl::IsOutOfRange(buffer.Slice(SIZE_MAX, 8).status()));
  CHECK(std::string(buffer.Slice(30, 4).status().message()) ==
        "4 bytes from byte 30 of a buffer of 32");
  CHECK(Buffer().Slice(0, 0).ok());
  CHECK(Buffer().data() == nullptr);
}

TEST_CASE("an allocation is of the pools, aligned, and of no bytes too", "[buffer]") {
  for (const size_t bytes :
       {size_t{0}, size_t{1}, size_t{64}, size_t{4096}, size_t{100000}, size_t{1} << 20}) {
    absl::StatusOr<Buffer> buffer = Buffer::Allocate(bytes);
    REQUIRE(buffer.ok());
    CHECK(buffer->bytes() == bytes);
    CHECK(reinterpret_cast<uintptr_t>(buffer->data()) % (bytes >= 4096 ? 4096 : 64) == 0);
    std::memset(buffer->mutable_data(), 1, bytes);
    absl::StatusOr<memory::RegionRef> region = BufferAccess::region(*buffer);
    REQUIRE(region.ok());
    CHECK((*region)->kind() == memory::RegionKind::kSlab);
    CHECK((*region)->fd() >= 0);
  }
}

TEST_CASE("sizes that no machine has are refused with the limit named", "[buffer][hostile]") {
  for (const size_t bytes : {SIZE_MAX, SIZE_MAX - 4095, SIZE_MAX / 2, size_t{1} << 50}) {
    const absl::Status status = Buffer::Allocate(bytes).status();
    CHECK(absl::IsResourceExhausted(status));
    CHECK(std::string(status.message()).find("may hold") != std::string::npos);
  }
}

TEST_CASE("wrapped memory that nobody knows becomes a foreign region once", "[buffer]") {
  std::byte memory[64];
  const Buffer buffer = Buffer::Wrap(memory, sizeof(memory), nullptr);
  const Buffer part = *buffer.Slice(16, 16);
  const memory::RegionRef region = *BufferAccess::region(buffer);
  CHECK(region->kind() == memory::RegionKind::kForeign);
  CHECK(region->base() == memory);
  CHECK(region->bytes() == 64);
  CHECK(*BufferAccess::region(part) == region);
  CHECK(absl::IsFailedPrecondition(BufferAccess::region(Buffer()).status()));
  CHECK(absl::IsNotFound(
      BufferAccess::region(Buffer::Wrap(memory, 64, nullptr, Device::Cuda(77))).status()));
}

TEST_CASE("wrapped memory uses its registration, and holds it", "[buffer][registration]") {
  std::vector<std::byte> memory(1 << 16);
  absl::StatusOr<MemoryRegistration> registration = RegisterMemory(memory.data(), memory.size());
  REQUIRE(registration.ok());
  {
    const Buffer inside = Buffer::Wrap(memory.data() + 4096, 4096, nullptr);
    const memory::RegionRef region = *BufferAccess::region(inside);
    CHECK(region->kind() == memory::RegionKind::kRegistered);
    CHECK(region->base() == memory.data());
    // Unregistering while a buffer was leased from it.
    // Expect: refused, and possible once the buffer is gone.
    CHECK(absl::IsFailedPrecondition(registration->Unregister()));
    const Buffer across = Buffer::Wrap(memory.data() + 65000, 4096, nullptr);
    CHECK((*BufferAccess::region(across))->kind() == memory::RegionKind::kForeign);
  }
  CHECK(registration->Unregister().ok());
  CHECK(registration->Unregister().ok());
  const Buffer later = Buffer::Wrap(memory.data(), 4096, nullptr);
  CHECK((*BufferAccess::region(later))->kind() == memory::RegionKind::kForeign);
}

TEST_CASE("ranges that cannot be registered are refused", "[registration][hostile]") {
  std::vector<std::byte> memory(8192);
  CHECK(absl::IsInvalidArgument(RegisterMemory(nullptr, 10).status()));
  CHECK(absl::IsInvalidArgument(RegisterMemory(memory.data(), 0).status()));
  CHECK(absl::IsInvalidArgument(RegisterMemory(memory.data(), SIZE_MAX).status()));
  CHECK(absl::IsNotFound(RegisterMemory(memory.data(), 8, Device::Cuda(9)).status()));
  absl::StatusOr<MemoryRegistration> first = RegisterMemory(memory.data() + 1000, 1000);
  REQUIRE(first.ok());
  CHECK(absl::IsAlreadyExists(RegisterMemory(memory.data(), 1001).status()));
  CHECK(absl::IsAlreadyExists(RegisterMemory(memory.data() + 1999, 1).status()));
  CHECK(absl::IsAlreadyExists(RegisterMemory(memory.data() + 1200, 10).status()));
  CHECK(absl::IsAlreadyExists(RegisterMemory(memory.data(), 8192).status()));
  CHECK(RegisterMemory(memory.data(), 1000).ok());
  CHECK(RegisterMemoryReadOnly(memory.data() + 2000, 1000).ok());
  *first = MemoryRegistration();
  CHECK(RegisterMemory(memory.data() + 1200, 10).ok());
}

thread_local bool on_reactor = false;
std::atomic<int> posted{0};

TEST_CASE("a release callback never runs on a reactor thread", "[buffer][disposal]") {
  memory::HelperThreads threads;
  threads.on_reactor = [] { return on_reactor; };
  threads.post_disposal = [](memory::Job job) {
    ++posted;
    std::thread([job = std::move(job)]() mutable { std::move(job)(); }).join();
  };
  memory::SetHelperThreads(threads);
  std::byte memory[8];
  std::thread::id released_on;
  const auto release = [&] { released_on = std::this_thread::get_id(); };

  // The last copy dies on a thread of the user's.
  // Expect: inline.
  Buffer::Wrap(memory, sizeof(memory), release);
  CHECK(released_on == std::this_thread::get_id());
  CHECK(posted == 0);

  // The last copy dies on a reactor.
  // Expect: elsewhere.
  on_reactor = true;
  Buffer::Wrap(memory, sizeof(memory), release);
  on_reactor = false;
  CHECK(released_on != std::this_thread::get_id());
  CHECK(posted == 1);
  memory::SetHelperThreads(memory::HelperThreads());
}

TEST_CASE("copies on many threads release once", "[buffer][threads]") {
  std::atomic<int> released{0};
  std::byte memory[64];
  {
    const Buffer buffer = Buffer::Wrap(memory, sizeof(memory), [&] { ++released; });
    std::vector<std::thread> threads;
    for (int i = 0; i < 4; ++i) {
      threads.emplace_back([buffer] {
        for (int n = 0; n < 2000; ++n) {
          const Buffer part = *buffer.Slice(0, 8);
          if (!BufferAccess::region(part).ok()) std::abort();
        }
      });
    }
    for (std::thread& t : threads) t.join();
    CHECK(released == 0);
  }
  CHECK(released == 1);
}

TEST_CASE("device memory is copied to by its engine and kept for the next", "[buffer][fake]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(3);
  const size_t live = fake.live();
  {
    const std::vector<int32_t> values = {1, 2, 3, 4};
    absl::StatusOr<Tensor> t = Tensor::Copy<int32_t>(values, {2, 2}, Device::Fake(3));
    REQUIRE(t.ok());
    CHECK(fake.live() == live + 1);
    std::vector<int32_t> seen(4);
    fake.Read(seen.data(), t->data(), 16);
    CHECK(seen == values);
    CHECK(absl::IsFailedPrecondition(t->Values<int32_t>().status()));
    CHECK((*BufferAccess::region(t->buffer()))->device().where() == Device::Fake(3));
    CHECK(Tensor::Empty(kFloat32, {0}, Device::Fake(3))->bytes() == 0);
  }
  // The device's pool keeps it for the next.
  for (int i = 0; i < 3; ++i) {
    CHECK(Tensor::Empty(kFloat32, {4}, Device::Fake(3)).ok());
    CHECK(fake.live() == live + 1);
  }
  CHECK(absl::IsNotFound(Tensor::Empty(kFloat32, {2}, Device::Fake(99)).status()));
}

}  // namespace
}  // namespace verbena
