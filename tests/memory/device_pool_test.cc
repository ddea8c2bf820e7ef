#include "rpc/memory/device_pool.h"

#include <vector>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/no_growth.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

FakeDevice& Fake() { return FakeDevice::Install(45); }
Block Take(size_t bytes) {
  absl::StatusOr<Block> block = AllocateDeviceBlock(Fake().where(), bytes);
  REQUIRE(block.ok());
  return *std::move(block);
}

TEST_CASE("small blocks of a device share a slab, and do not overlap", "[device_pool]") {
  std::vector<Block> blocks;
  for (size_t bytes = 0; bytes < 100; ++bytes) blocks.push_back(Take(bytes * 77));
  CHECK(Fake().live() == 1);
  for (size_t i = 0; i < blocks.size(); ++i) {
    CHECK(blocks[i].region() == blocks[0].region());
    CHECK(blocks[i].bytes() == i * 77);
    CHECK(reinterpret_cast<uintptr_t>(blocks[i].data()) % 4096 == 0);
    const auto mark = static_cast<unsigned char>(i);
    for (size_t at = 0; at < blocks[i].bytes(); ++at) Fake().Write(blocks[i].data() + at, &mark, 1);
  }
  for (size_t i = 0; i < blocks.size(); ++i) {
    std::vector<unsigned char> seen(i * 77);
    if (i > 0) Fake().Read(seen.data(), blocks[i].data(), seen.size());
    CHECK(seen == std::vector<unsigned char>(i * 77, static_cast<unsigned char>(i)));
  }
  std::byte* const first = blocks[3].data();
  blocks[3].Reset();
  CHECK(Take(200).data() == first);
}

TEST_CASE("a device's slabs are made when they are needed and go when they are not",
          "[device_pool]") {
  std::vector<Block> blocks;
  for (int i = 0; i < 10; ++i) blocks.push_back(Take(kDeviceLargeBytes));
  CHECK(Fake().live() == 3);
  blocks.clear();
  CHECK(Fake().live() == 1);  // one is kept
}

TEST_CASE("large blocks of a device are kept for the next of their size", "[device_pool]") {
  Take(1).Reset();  // the slab
  const size_t live = Fake().live();
  const size_t bytes = kDeviceLargeBytes + 5;
  std::byte* at = nullptr;
  {
    const Block block = Take(bytes);
    CHECK(block.bytes() == bytes);
    CHECK(Fake().live() == live + 1);
    at = block.data();
  }
  CHECK(Fake().live() == live + 1);
  {
    const Block again = Take(bytes - 3), other = Take(bytes);
    CHECK(again.data() == at);
    CHECK(other.data() != at);
    CHECK(Fake().live() == live + 2);
  }
  // Not more than may be kept: those that were freed first go.
  std::vector<Block> many;
  for (int i = 0; i < 5; ++i) many.push_back(Take(kDeviceKeptBytesMax / 4));
  many.clear();
  CHECK(Fake().live() == live + 4);
}

TEST_CASE("what is kept goes back when the device has no memory for other sizes", "[device_pool]") {
  Take(1).Reset();                      // a slab
  Take(kDeviceLargeBytes * 2).Reset();  // and a large one, are kept
  const Block used = Take(kDeviceLargeBytes * 5);
  const size_t live = Fake().live();
  REQUIRE(live >= 3);
  Fake().LimitMemory(Fake().live_bytes());
  {
    const NoGrowth no_growth;  // asks for nothing, and drops nothing
    CHECK_FALSE(AllocateDeviceBlock(Fake().where(), kDeviceLargeBytes * 4).ok());
    CHECK(Fake().live() == live);
  }
  {
    const Block other = Take(kDeviceLargeBytes * 4);
    CHECK(Fake().live() == 2);  // it, and what is used
  }
  // What would not fit at all is refused, once nothing is kept any more.
  const absl::Status status = AllocateDeviceBlock(Fake().where(), size_t{1} << 40).status();
  CHECK(absl::IsResourceExhausted(status));
  CHECK(Fake().live() == 1);
  Fake().LimitMemory(SIZE_MAX);
}

TEST_CASE("a thread that must not block has what is there, and no more", "[device_pool]") {
  Take(1).Reset();
  const NoGrowth no_growth;
  CHECK(Take(4096).bytes() == 4096);
  CHECK_FALSE(no_growth.refused());
  CHECK(absl::IsResourceExhausted(
      AllocateDeviceBlock(Fake().where(), kDeviceLargeBytes * 3).status()));
  CHECK(no_growth.refused());
  CHECK(absl::IsNotFound(AllocateDeviceBlock(::verbena::Device::Fake(41), 1).status()));
  CHECK_FALSE(AllocateDeviceBlock(Fake().where(), SIZE_MAX).ok());
}

}  // namespace
}  // namespace verbena::memory
