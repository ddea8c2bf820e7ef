#include "rpc/memory/copy_now.h"

#include "absl/strings/str_cat.h"
#include "rpc/memory/device.h"

namespace verbena::memory {
namespace {

constexpr size_t kStepBytes = size_t{16} << 20;

absl::Status Run(::verbena::Device where, std::byte* to, const std::byte* from, size_t bytes) {
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<Device*> device = FindDevice(where);
  if (!device.ok()) return device.status();
  const std::unique_ptr<CopyEngine> engine = (*device)->MakeCopyEngine();
  const CopyPiece piece{to, from, bytes};
  if (!engine->Copy(0, absl::MakeConstSpan(&piece, 1), StreamOrder())) {
    return absl::InternalError("a fresh copy engine takes no copy");
  }
  bool copied = false;
  while (engine->Poll(
      kStepBytes, [] { return false; }, [&](uint64_t, bool ok) { copied = ok; })) {
  }
  if (copied) return absl::OkStatus();
  return absl::DataLossError(absl::StrCat("a copy of ", bytes, " bytes faulted"));
}

}  // namespace

absl::Status CopyNow(::verbena::Device to_device, std::byte* to, const std::byte* from,
                     size_t bytes) {
  return Run(to_device, to, from, bytes);
}

absl::Status CopyToHostNow(::verbena::Device from_device, std::byte* to, const std::byte* from,
                           size_t bytes) {
  return Run(from_device, to, from, bytes);
}

}  // namespace verbena::memory
