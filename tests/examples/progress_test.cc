#include "examples/03_inference/progress.h"

#include "tests/catch.h"

namespace verbena::examples {

TEST_CASE("sizes and rates are said in units", "[example]") {
  CHECK(HumanBytes(0) == "0 bytes");
  CHECK(HumanBytes(1023) == "1023 bytes");
  CHECK(HumanBytes(1536) == "1.50 KiB");
  CHECK(HumanBytes(uint64_t{1} << 30) == "1.00 GiB");
  CHECK(HumanBytes(uint64_t{5} << 50) == "5120.00 TiB");
  CHECK(HumanRate(3'000'000'000, absl::Seconds(2)) == "1.500 GB/s");
  CHECK(HumanRate(0, absl::ZeroDuration()) == "0.000 GB/s");
}

TEST_CASE("a bar is as full as the work is done", "[example]") {
  Progress progress("pulling", 4096);
  CHECK(progress.Line("", absl::Seconds(1)) ==
        "pulling [..............................]   0 % of 4.00 KiB in 1.0 s");
  progress.Advance(2048, "a");
  CHECK(progress.Line("b", absl::Milliseconds(300)) ==
        "pulling [###############...............]  50 % of 4.00 KiB in 0.3 s  b");
  // More than was announced. Expect: no more than full.
  progress.Advance(4096, "a");
  CHECK(progress.Line("", absl::Seconds(1)) ==
        "pulling [##############################] 100 % of 4.00 KiB in 1.0 s");
  // Of nothing, all is done.
  CHECK(Progress("x", 0).Line("", absl::Seconds(1)) ==
        "x [##############################] 100 % of 0 bytes in 1.0 s");
}

}  // namespace verbena::examples
