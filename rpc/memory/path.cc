#include "verbena/path.h"

#include <string>

#include "absl/strings/str_cat.h"

namespace verbena {

absl::StatusOr<Path> PathFromName(absl::string_view name) {
  std::string names;
  for (uint8_t i = 0; PathName(Path{i}) != "unknown"; ++i) {
    if (PathName(Path{i}) == name) return Path{i};
    absl::StrAppend(&names, i == 0 ? "" : ", ", PathName(Path{i}));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no path \"", name, "\"; there are ", names));
}

}  // namespace verbena
