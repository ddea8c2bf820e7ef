#include "rpc/gpu/pinned.h"

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"

namespace verbena::gpu {
namespace {

struct Pinned final : memory::Registration {
  explicit Pinned(void* m) : memory(m) {}
  void* const memory;
};

}  // namespace

absl::StatusOr<std::unique_ptr<memory::Registration>> PinnedMemory::Register(
    const memory::Region& region, uint8_t uses) {
  if (!region.device().host_accessible()) return absl::UnimplementedError("not host memory");
  const absl::StatusOr<abi::Context> context = device_.context().Get();
  if (!context.ok()) return absl::UnimplementedError(context.status().message());
  const InContext in(device_.driver(), *context);
  const bool written = (uses & static_cast<uint8_t>(memory::Use::kReadInto)) != 0;
  const abi::Result r = device_.driver().cuMemHostRegister_v2(
      region.base(), region.bytes(),
      abi::kHostRegisterPortable | (written ? 0 : abi::kHostRegisterReadOnly));
  if (r == abi::kSuccess) return std::make_unique<Pinned>(region.base());
  const absl::Status why = device_.Note(r, absl::StrCat("page-locking ", region.bytes(), " bytes"));
  // The user may have done it.
  if (r != abi::kHostMemoryAlreadyRegistered) VERBENA_LOG(kWarning, why.message());
  return absl::UnimplementedError(why.message());
}

absl::Status PinnedMemory::Unregister(std::unique_ptr<memory::Registration>& registration) {
  const absl::StatusOr<abi::Context> context = device_.context().Get();
  if (context.ok()) {
    const InContext in(device_.driver(), *context);
    // Nobody can do anything about an error: the context is broken, and holds nothing any more.
    device_.driver().cuMemHostUnregister(static_cast<const Pinned&>(*registration).memory);
  }
  registration.reset();
  return absl::OkStatus();
}

}  // namespace verbena::gpu
