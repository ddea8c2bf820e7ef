#include "rpc/memory/allocation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/no_growth.h"
#include "rpc/memory/registrars.h"

namespace verbena::memory {
namespace {

class Allocation final : public Region {
 public:
  Allocation(Device& device, Extent extent)
      : Region(device, extent, RegionKind::kRegistered, -1, 0) {}
  ~Allocation() override {
    ForgetRegion(*this);
    PostToSetup([&device = device(), extent = extent()] {
      const absl::Status status = UnregisterRegion(extent.buffer_id);
      if (status.ok()) {
        device.Free(extent);
      } else {
        VERBENA_LOG(kWarning, extent.bytes,
                    " bytes of device memory stay allocated: ", status.message());
      }
    });
  }
};

absl::StatusOr<RegionRef> AllocateOnSetup(::verbena::Device where, size_t bytes) {
  absl::StatusOr<Device*> device = FindDevice(where);
  if (!device.ok()) return device.status();
  absl::StatusOr<Extent> extent = (*device)->Allocate(std::max<size_t>(bytes, 1));
  if (!extent.ok()) return extent.status();
  RegionRef region = std::make_shared<Allocation>(**device, *extent);
  if (absl::Status s = AddKnownRegion(region); !s.ok()) return s;
  const auto uses = static_cast<uint8_t>(static_cast<uint8_t>(Use::kLeasable) |
                                         static_cast<uint8_t>(Use::kReadInto));
  if (absl::Status s = RegisterRegion(region, uses); !s.ok()) return s;
  return region;
}

}  // namespace

absl::StatusOr<RegionRef> AllocateOn(::verbena::Device where, size_t bytes) {
  if (NoGrowth::Refuse()) {
    return absl::ResourceExhaustedError(absl::StrCat(bytes, " bytes: the device would be asked"));
  }
  absl::StatusOr<RegionRef> region = absl::UnknownError("not run");
  RunOnSetup([&] { region = AllocateOnSetup(where, bytes); });
  return region;
}

}  // namespace verbena::memory
