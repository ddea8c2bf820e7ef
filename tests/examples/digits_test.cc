#include "examples/03_inference/digits.h"

#include <string>

#include "tests/catch.h"
#include "tests/examples/temporary_file.h"

namespace verbena::examples {
namespace {

using Catch::ContainsSubstring;

std::string Line(const std::string& first, const std::string& label) {
  std::string line = first;
  for (size_t i = 1; i < kPixelCount; ++i) line += ",0";
  return line + "," + label + "\n";
}
std::string ErrorOf(const std::string& contents) {
  TemporaryFile temporary(contents);
  absl::StatusOr<Digits> digits = LoadDigits(temporary.path());
  return digits.ok() ? "loaded" : std::string(digits.status().message());
}

}  // namespace

TEST_CASE("digits are read as numbers of 0 to 1 with their labels", "[example]") {
  TemporaryFile temporary(Line("16", "7") + Line("4", "0"));
  absl::StatusOr<Digits> digits = LoadDigits(temporary.path());
  REQUIRE(digits.ok());
  REQUIRE(digits->count() == 2);
  CHECK(digits->image(0)[0] == 1.0f);
  CHECK(digits->image(1)[0] == 0.25f);
  CHECK(digits->image(1)[63] == 0.0f);
  CHECK(digits->labels[0] == 7);
}

TEST_CASE("a line that holds no digit is refused by number", "[example]") {
  CHECK_THAT(ErrorOf(Line("0", "7") + Line("17", "7")),
             ContainsSubstring(":2: field 1 is '17', allowed are 0 to 16"));
  CHECK_THAT(ErrorOf(Line("-1", "7")), ContainsSubstring(":1: field 1 is '-1'"));
  CHECK_THAT(ErrorOf(Line("x", "7")), ContainsSubstring("field 1 is 'x'"));
  CHECK_THAT(ErrorOf(Line("0", "10")), ContainsSubstring("field 65 is '10', allowed are 0 to 9"));
  CHECK_THAT(ErrorOf("1,2,3\n"), ContainsSubstring("3 fields, expected 65"));
  CHECK(LoadDigits("/nonexistent").status().code() == absl::StatusCode::kNotFound);
}

}  // namespace verbena::examples
