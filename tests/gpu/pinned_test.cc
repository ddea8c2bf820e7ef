#include "rpc/gpu/pinned.h"

#include <vector>

#include "rpc/memory/region.h"
#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

constexpr auto kRead = static_cast<uint8_t>(memory::Use::kReadInto);

memory::Region Of(std::vector<std::byte>& bytes) {
  return memory::Region(memory::HostDevice(), {bytes.data(), bytes.size(), 7},
                        memory::RegionKind::kRegistered, -1, 0);
}

TEST_CASE("host memory is page-locked for as long as it is registered", "[gpu][pinned]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  PinnedMemory pinned(*gpu);
  std::vector<std::byte> bytes(8192);
  const auto address = reinterpret_cast<abi::Address>(bytes.data());
  CHECK(ReachOf(cuda.table(), address, 8192) == Reach::kPageable);
  auto registration = pinned.Register(Of(bytes), kRead);
  REQUIRE(registration.ok());
  CHECK(ReachOf(cuda.table(), address + 1, 8191) == Reach::kPinned);
  CHECK(ReachOf(cuda.table(), address + 1, 8192) == Reach::kPageable);
  CHECK(pinned.Unregister(*registration).ok());
  CHECK(ReachOf(cuda.table(), address, 8192) == Reach::kPageable);
  CHECK(cuda.wrong_context == 0);
}

TEST_CASE("memory that cannot be page-locked is no error of its owner's", "[gpu][pinned]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = *CudaDevice::Create(cuda.table(), 0);
  PinnedMemory pinned(*gpu);
  std::vector<std::byte> bytes(8192);
  for (const abi::Result r : {abi::kHostMemoryAlreadyRegistered, abi::kOutOfMemory}) {
    cuda.Fail("cuMemHostRegister_v2", r);
    CHECK(absl::IsUnimplemented(pinned.Register(Of(bytes), kRead).status()));
  }
  memory::Region device(*gpu, {bytes.data(), 64, 8}, memory::RegionKind::kRegistered, -1, 0);
  CHECK(absl::IsUnimplemented(pinned.Register(device, kRead).status()));
}

TEST_CASE("a context is taken once, and that is told once", "[gpu][context]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  PrimaryContext context(cuda.table(), 1);
  int told = 0;
  context.set_on_taken([&] { ++told; });
  CHECK_FALSE(context.taken());
  cuda.Fail("cuDevicePrimaryCtxRetain", abi::kOutOfMemory);
  CHECK(absl::IsResourceExhausted(context.Get().status()));
  CHECK(told == 0);
  CHECK(*context.Get() == *context.Get());
  CHECK(context.taken());
  CHECK(told == 1);
  CHECK(cuda.contexts == std::vector<int>{0, 1});
}

}  // namespace
}  // namespace verbena::gpu
