#include "benchmarks/harness/histogram.h"

#include "tests/catch.h"

namespace verbena::benchmarks {
namespace {

TEST_CASE("each value falls into a bucket that holds it and is at most 0.8 % wide",
          "[benchmarks]") {
  for (uint64_t v = 0; v < (uint64_t{1} << Histogram::kBitsMax); v = v < 300 ? v + 1 : v + v / 97) {
    const size_t i = Histogram::Index(v);
    REQUIRE(i < Histogram::kBuckets);
    REQUIRE(Histogram::LowerBound(i) <= v);
    REQUIRE(v < Histogram::LowerBound(i + 1));
    REQUIRE((Histogram::LowerBound(i + 1) - Histogram::LowerBound(i) - 1) * 127 <= v);
  }
  REQUIRE(Histogram::Index(UINT64_MAX) == Histogram::kBuckets - 1);
}

TEST_CASE("percentiles are those of the recorded values", "[benchmarks]") {
  Histogram h;
  REQUIRE(h.Percentile(0.5) == 0);
  for (uint64_t v = 1; v <= 100; ++v) h.Record(v);
  REQUIRE(h.Percentile(0.5) == 50);
  REQUIRE(h.Percentile(0.99) == 99);
  REQUIRE(h.Percentile(1.0) == 100);
  REQUIRE(h.Percentile(0.0) == 1);
  // One slow call in a hundred thousand does not move p99.
  for (int i = 0; i < 100'000; ++i) h.Record(300);
  h.Record(1'000'000);
  REQUIRE(h.Percentile(0.99) == Approx(300).epsilon(0.01));
  REQUIRE(h.Percentile(1.0) == Approx(1'000'000).epsilon(0.01));
}

TEST_CASE("the median of an even count is the mean of the middle two", "[benchmarks]") {
  REQUIRE(Median({}) == 0);
  REQUIRE(Median({3, 1, 2}) == 2);
  REQUIRE(Median({4, 1, 2, 3}) == 2.5);
}

}  // namespace
}  // namespace verbena::benchmarks
