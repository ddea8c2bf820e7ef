#include "rpc/base/histogram.h"

#include "tests/catch.h"

using verbena::Histogram;

TEST_CASE("each value lies within its bucket, which is at most 1/16 wide", "[histogram]") {
  for (uint64_t v : {0ull, 1ull, 15ull, 16ull, 17ull, 31ull, 32ull, 1000ull, 123'456'789ull,
                     1ull << 40, ~0ull >> 1, ~0ull}) {
    const uint32_t bucket = Histogram::BucketOf(v);
    REQUIRE(bucket < Histogram::kBuckets);
    CHECK(Histogram::UpperBound(bucket) >= v);
    if (bucket > 0) CHECK(Histogram::UpperBound(bucket - 1) < v);
    CHECK(Histogram::UpperBound(bucket) - v <= v / 16);
  }
}

TEST_CASE("percentiles of 1 to 1000 are right to 1/16", "[histogram]") {
  Histogram h;
  CHECK(h.Percentile(0.5) == 0);
  for (int i = 1; i <= 1000; ++i) h.Record(i);
  CHECK(h.count() == 1000);
  CHECK(h.sum() == 500'500);
  CHECK(h.min() == 1);
  CHECK(h.max() == 1000);
  CHECK(h.Percentile(0.5) >= 500);
  CHECK(h.Percentile(0.5) <= 532);
  CHECK(h.Percentile(0.99) >= 990);
  CHECK(h.Percentile(1.0) == 1000);
  CHECK(h.Percentile(0.0) == 1);
}

TEST_CASE("merged histograms count both; negative values count as zero", "[histogram]") {
  Histogram a, b;
  a.Record(-5);
  b.Record(100);
  a.Merge(b);
  CHECK(a.count() == 2);
  CHECK(a.min() == 0);
  CHECK(a.max() == 100);
  a.Reset();
  CHECK(a.count() == 0);
}
