#include "codegen/parameters.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace verbena::codegen {

absl::Status CheckParameters(absl::string_view text) {
  for (absl::string_view item : absl::StrSplit(text, ',', absl::SkipWhitespace())) {
    const std::pair<absl::string_view, absl::string_view> parameter =
        absl::StrSplit(item, absl::MaxSplits('=', 1));
    return absl::InvalidArgumentError(absl::StrCat("Unknown parameter: ", parameter.first));
  }
  return absl::OkStatus();
}

}  // namespace verbena::codegen
