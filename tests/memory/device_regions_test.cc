#include "rpc/memory/device_regions.h"

#include <map>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/registrars.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

FakeDevice& Fake() { return FakeDevice::Install(42); }

// Which regions a domain has been told of, and not told the end of.
class Domain final : public Registrar {
 public:
  Domain() { REQUIRE(AddRegistrar(*this, "test").ok()); }
  ~Domain() { CHECK(RemoveRegistrar(*this).ok()); }
  struct Kept : Registration {
    explicit Kept(uint64_t i) : id(i) {}
    const uint64_t id;
  };
  absl::StatusOr<std::unique_ptr<Registration>> Register(const Region& region, uint8_t) override {
    ++known[region.buffer_id()];
    return std::make_unique<Kept>(region.buffer_id());
  }
  absl::Status Unregister(std::unique_ptr<Registration>& registration) override {
    known.erase(static_cast<Kept&>(*registration).id);
    registration.reset();
    return absl::OkStatus();
  }
  std::map<uint64_t, int> known;
};

RegionRef Of(const std::byte* data, size_t bytes) {
  auto regions = DeviceRegions(Fake(), data, bytes);
  REQUIRE(regions.ok());
  REQUIRE(regions->size() == 1);
  return (*regions)[0];
}

TEST_CASE("all that lies in one allocation of a device is of one region", "[device_regions]") {
  Domain domain;
  const Extent a = *Fake().Allocate(10000), b = *Fake().Allocate(10000);
  const RegionRef region = Of(a.base + 100, 200);
  CHECK(region->base() == a.base);
  CHECK(region->bytes() == 10000);
  CHECK(Of(a.base + 9000, 1000) == region);
  CHECK(Of(b.base, 1) != region);
  CHECK(domain.known[region->buffer_id()] == 1);
  CHECK(*RegionFor(a.base + 5, 5, Fake().where()) == region);
  CHECK(absl::IsNotFound(RegionFor(a.base + 5, 10000, Fake().where()).status()));
  Fake().Free(a);
  Fake().Free(b);
  CHECK(absl::IsNotFound(DeviceRegions(Fake(), a.base, 1).status()));
}

TEST_CASE("an allocation where another was is another region, and domains hear of both",
          "[device_regions]") {
  Domain domain;
  const Extent first = *Fake().Allocate(4096);
  uint64_t before = Of(first.base, 4096)->buffer_id();
  Fake().Free(first);
  Extent again = *Fake().Allocate(4096);
  // The kernel gives the addresses that were freed last; if not, there is nothing to see here.
  if (again.base == first.base) {
    CHECK(Of(again.base, 4096)->buffer_id() != before);
    CHECK_FALSE(domain.known.contains(before));
  }
  Fake().Free(again);
}

TEST_CASE("the regions of what was freed go when another one comes", "[device_regions]") {
  Domain domain;
  const Extent kept = *Fake().Allocate(4096), freed = *Fake().Allocate(4096),
               renumbered = *Fake().Allocate(4096);
  const uint64_t of_kept = Of(kept.base, 1)->buffer_id();
  const uint64_t of_freed = Of(freed.base, 1)->buffer_id();
  const uint64_t of_renumbered = Of(renumbered.base, 1)->buffer_id();
  Fake().Free(freed);
  Fake().Renumber(renumbered.base);
  const Extent other = *Fake().Allocate(4096);
  Of(other.base, 1);
  CHECK(domain.known.contains(of_kept));
  CHECK_FALSE(domain.known.contains(of_freed));
  CHECK_FALSE(domain.known.contains(of_renumbered));
  for (const Extent& extent : {kept, renumbered, other}) Fake().Free(extent);
}

TEST_CASE("regions that nobody uses are kept, but not without end", "[device_regions]") {
  Domain domain;
  const size_t others = domain.known.size();  // that tests before this one left
  std::vector<Extent> extents;
  for (size_t i = 0; i < kDeviceRegionsMax + 10; ++i) {
    extents.push_back(*Fake().Allocate(64));
    Of(extents.back().base, 1);
  }
  // The longest unused are forgotten, the others are not.
  CHECK(domain.known.size() <= others + kDeviceRegionsMax);
  const size_t known = domain.known.size();
  Of(extents.back().base, 64);
  CHECK(domain.known.size() == known);
  const RegionRef held = Of(extents[20].base, 64);
  for (size_t i = 0; i < 10; ++i) Of(extents[i].base, 1);
  CHECK(domain.known.contains(held->buffer_id()));
  for (const Extent& extent : extents) Fake().Free(extent);
}

TEST_CASE("the end of a region that was forgotten is not that of the next of its allocation",
          "[device_regions]") {
  Domain domain;
  const Extent shared = *Fake().Allocate(4096);
  RegionRef forgotten = Of(shared.base, 1);
  std::vector<Extent> others;
  for (size_t i = 0; i < kDeviceRegionsMax; ++i) {
    others.push_back(*Fake().Allocate(64));
    Of(others.back().base, 1);
  }
  const RegionRef next = Of(shared.base + 64, 1);
  REQUIRE(next != forgotten);
  CHECK(domain.known.contains(next->buffer_id()));
  const uint64_t number = forgotten->buffer_id();
  forgotten.reset();
  CHECK(domain.known.contains(next->buffer_id()));
  CHECK_FALSE(domain.known.contains(number));
  // It can be exported, as what the device knows.
  CHECK(Fake().ExportTo(ExtentOf(*next), ExportWay::kMemfd).ok());
  CHECK(StillThere(*next));
  others.push_back(shared);
  for (const Extent& extent : others) Fake().Free(extent);
  CHECK_FALSE(StillThere(*next));
}

}  // namespace
}  // namespace verbena::memory
