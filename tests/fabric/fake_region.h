#pragma once
// Memory of a fake device as a region that can be leased; freed with it.
#include <memory>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/region.h"
#include "tests/catch.h"

namespace verbena::contract {

class FakeRegion final : public memory::Region {
 public:
  FakeRegion(memory::FakeDevice& device, memory::Extent extent)
      : Region(device, extent, memory::RegionKind::kSlab, -1, 0), fake_(device) {}
  ~FakeRegion() override { fake_.Free(extent()); }

 private:
  memory::FakeDevice& fake_;
};

inline std::shared_ptr<FakeRegion> MakeFake(memory::FakeDevice& fake, size_t bytes) {
  auto extent = fake.Allocate(bytes);
  REQUIRE(extent.ok());
  return std::make_shared<FakeRegion>(fake, *extent);
}

}  // namespace verbena::contract
