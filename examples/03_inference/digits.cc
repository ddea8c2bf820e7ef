#include "examples/03_inference/digits.h"

#include <fstream>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"

namespace verbena::examples {
namespace {

absl::Status ReadLine(absl::string_view line, Digits& digits) {
  const std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  if (fields.size() != kPixelCount + 1) {
    return absl::InvalidArgumentError(
        absl::StrCat(fields.size(), " fields, expected ", kPixelCount + 1));
  }
  for (size_t i = 0; i < fields.size(); ++i) {
    const int limit = i < kPixelCount ? kPixelMax : static_cast<int>(kDigitCount) - 1;
    int value = 0;
    if (!absl::SimpleAtoi(fields[i], &value) || value < 0 || value > limit) {
      return absl::InvalidArgumentError(absl::StrCat("field ", i + 1, " is '",
                                                     absl::CHexEscape(fields[i].substr(0, 20)),
                                                     "', allowed are 0 to ", limit));
    }
    if (i < kPixelCount) {
      digits.pixels.push_back(static_cast<float>(value) / kPixelMax);
    } else {
      digits.labels.push_back(value);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Digits> LoadDigits(const std::string& path) {
  std::ifstream in(path);
  if (!in) return absl::NotFoundError(absl::StrCat(path, ": cannot open"));
  Digits digits;
  std::string line;
  while (std::getline(in, line)) {
    if (digits.count() == kImageCountMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ": more than ", kImageCountMax, " images"));
    }
    if (absl::Status s = ReadLine(line, digits); !s.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat(path, ":", digits.count() + 1, ": ", s.message()));
    }
  }
  return digits;
}

}  // namespace verbena::examples
