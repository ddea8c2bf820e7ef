#pragma once
// A copy that is done when the function returns.
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/memory/device.h"
#include "verbena/device.h"

namespace verbena::memory {

// Has `by` copy: pieces from its memory or to it, or both. Blocks, and spins: not on a reactor.
// NOT_FOUND: no such device; what it says when it has failed; DATA_LOSS: a range faulted. Any
// thread.
absl::Status CopyNow(::verbena::Device by, absl::Span<const CopyPiece> pieces);

}  // namespace verbena::memory
