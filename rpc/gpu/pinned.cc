#include "rpc/gpu/pinned.h"

namespace verbena::gpu {
namespace {

struct Pinned final : memory::Registration {
  explicit Pinned(const memory::Mapping& h) : host(h) {}
  const memory::Mapping host;
};

}  // namespace

absl::StatusOr<std::unique_ptr<memory::Registration>> PinnedMemory::Register(
    const memory::Region& region, uint8_t uses) {
  if (!region.device().host_accessible()) return absl::UnimplementedError("not host memory");
  const bool written = (uses & static_cast<uint8_t>(memory::Use::kReadInto)) != 0;
  const memory::Mapping host{&region.device(), region.base(), region.bytes()};
  if (device_.LockHost(host, !written)) return std::make_unique<Pinned>(host);
  return absl::UnimplementedError("not page-locked");
}

absl::Status PinnedMemory::Unregister(std::unique_ptr<memory::Registration>& registration) {
  device_.UnlockHost(static_cast<const Pinned&>(*registration).host);
  registration.reset();
  return absl::OkStatus();
}

}  // namespace verbena::gpu
