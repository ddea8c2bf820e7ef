#pragma once
// What decoders say of bytes that do not fit together: what was needed, and what was there.
#include <cstdint>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

namespace verbena::wire {

inline absl::Status Truncated(absl::string_view what, uint64_t needed_bytes, uint64_t left_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(what, " is truncated: it needs ", needed_bytes,
                                                 " bytes, ", left_bytes, " are there"));
}

inline absl::Status LeftOver(absl::string_view behind, uint64_t left_bytes) {
  return absl::InvalidArgumentError(absl::StrCat(left_bytes, " bytes are left after ", behind));
}

}  // namespace verbena::wire
