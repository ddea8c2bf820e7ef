#pragma once
// The text between `--verbena_out=` and the colon, and that of `--verbena_opt`: a comma-separated
// list of `name=value`.
#include "absl/status/status.h"
#include "absl/strings/string_view.h"

namespace verbena::codegen {

// The generator has no parameter yet: all three files are always written, so that a build can list
// them before protoc has run. INVALID_ARGUMENT, "Unknown parameter: NAME", for any; an empty item
// is none.
absl::Status CheckParameters(absl::string_view text);

}  // namespace verbena::codegen
