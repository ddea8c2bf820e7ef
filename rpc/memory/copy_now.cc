#include "rpc/memory/copy_now.h"

#include <memory>

#include "absl/strings/str_cat.h"

namespace verbena::memory {
namespace {

constexpr size_t kStepBytes = size_t{16} << 20;

}  // namespace

absl::Status CopyNow(::verbena::Device by, absl::Span<const CopyPiece> pieces) {
  size_t bytes = 0;
  for (const CopyPiece& piece : pieces) bytes += piece.bytes;
  if (bytes == 0) return absl::OkStatus();
  absl::StatusOr<Device*> device = FindDevice(by);
  if (!device.ok()) return device.status();
  const std::unique_ptr<CopyEngine> engine = (*device)->MakeCopyEngine();
  if (!engine->Copy(0, pieces, StreamOrder())) {
    return absl::InternalError("a fresh copy engine takes no copy");
  }
  bool copied = false;
  while (engine->Poll(
      kStepBytes, [] { return false; }, [&](uint64_t, bool ok) { copied = ok; })) {
  }
  if (copied) return absl::OkStatus();
  if (absl::Status health = (*device)->health(); !health.ok()) return health;
  return absl::DataLossError(absl::StrCat("a copy of ", bytes, " bytes faulted"));
}

}  // namespace verbena::memory
