#include "rpc/memory/fake_device.h"

#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <vector>

#include "rpc/memory/allocation.h"
#include "rpc/memory/copy_now.h"
#include "rpc/memory/known_regions.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

constexpr int kIndex = 40;

FakeDevice& Fake() { return FakeDevice::Install(kIndex); }

TEST_CASE("the CPU crashes where it touches a fake device's memory", "[fake]") {
  const Extent extent = *Fake().Allocate(4096);
  const pid_t child = fork();
  if (child == 0) {
    signal(SIGSEGV, [](int) { _exit(17); });
    const std::byte seen = *const_cast<const volatile std::byte*>(extent.base);
    _exit(static_cast<int>(seen));
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  REQUIRE(WIFEXITED(status));
  CHECK(WEXITSTATUS(status) == 17);
  Fake().Free(extent);
}

TEST_CASE("its copy engine reaches both sides", "[fake]") {
  const Extent a = *Fake().Allocate(10000);
  const Extent b = *Fake().Allocate(10000);
  const std::vector<std::byte> sent(5000, std::byte{3});
  std::vector<std::byte> seen(5000);
  const auto engine = Fake().MakeCopyEngine();
  const CopyPiece in{a.base + 100, sent.data(), 5000}, across{b.base + 7, a.base + 100, 5000},
      out{seen.data(), b.base + 7, 5000};
  REQUIRE(engine->Copy(1, absl::MakeConstSpan(&in, 1), {}));
  REQUIRE(engine->Copy(2, absl::MakeConstSpan(&across, 1), {}));
  REQUIRE(engine->Copy(3, absl::MakeConstSpan(&out, 1), {}));
  int good = 0;
  engine->Poll(
      SIZE_MAX, [] { return false; }, [&](uint64_t, bool ok) { good += ok; });
  CHECK(good == 3);
  CHECK(seen == sent);
  Fake().Free(a);
  Fake().Free(b);
}

TEST_CASE("a copy past the end of its memory is a fault", "[fake][hostile]") {
  const Extent extent = *Fake().Allocate(1000);
  std::vector<std::byte> host(2000);
  const auto copy = [](std::byte* to, const std::byte* from, size_t bytes) {
    const CopyPiece piece{to, from, bytes};
    return CopyNow(Fake().where(), {&piece, 1});
  };
  CHECK(absl::IsDataLoss(copy(extent.base, host.data(), 1001)));
  CHECK(absl::IsDataLoss(copy(host.data(), extent.base + 999, 2)));
  CHECK(copy(extent.base, host.data(), 1000).ok());
  Fake().Free(extent);
}

TEST_CASE("an import is the owner's memory, untouchable too", "[fake]") {
  const Extent extent = *Fake().Allocate(5000);
  absl::StatusOr<Export> exported = Fake().ExportTo(extent, ExportWay::kMemfd);
  REQUIRE(exported.ok());
  absl::StatusOr<Mapping> mapping = Fake().Import(*exported);
  REQUIRE(mapping.ok());
  const uint32_t sent = 0xabcd1234;
  Fake().Write(extent.base + 4000, &sent, 4);
  uint32_t seen = 0;
  Fake().Read(&seen, mapping->base + 4000, 4);
  CHECK(seen == sent);
  Fake().Release(*mapping);
  Fake().Free(extent);
  CHECK(absl::IsFailedPrecondition(Fake().Import(Export()).status()));
  CHECK(absl::IsUnimplemented(Fake().ExportTo(extent, ExportWay::kIpc).status()));
}

TEST_CASE("what it describes is its own", "[fake]") {
  const Extent extent = *Fake().Allocate(5000);
  CHECK(Fake().Describe(extent.base + 10, 4990)->front().buffer_id == extent.buffer_id);
  CHECK(absl::IsNotFound(Fake().Describe(extent.base + 10, 4991).status()));
  std::byte host[8];
  CHECK(absl::IsNotFound(Fake().Describe(host, 8).status()));
  Fake().Free(extent);
  CHECK_FALSE(Fake().Allocate(0).ok());
  CHECK_FALSE(Fake().Allocate(SIZE_MAX).ok());
}

TEST_CASE("a region allocated on it goes back when its last holder dies", "[fake]") {
  const size_t live = Fake().live();
  absl::StatusOr<RegionRef> region = AllocateOn(Fake().where(), 4096);
  REQUIRE(region.ok());
  CHECK(Fake().live() == live + 1);
  CHECK(FindKnownRegion((*region)->base() + 8, 8, Fake().where()) == *region);
  CHECK(FindKnownRegion((*region)->base() + 8, 8, ::verbena::Device::Host()) == nullptr);
  region->reset();
  CHECK(Fake().live() == live);
  CHECK(absl::IsNotFound(AllocateOn(::verbena::Device::Fake(41), 1).status()));
}

}  // namespace
}  // namespace verbena::memory
