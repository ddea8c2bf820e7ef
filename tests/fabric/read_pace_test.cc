#include "rpc/fabric/verbs/read_pace.h"

#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

constexpr int64_t kMs = 1'000'000;

// READs for `ms` at `bytes_per_ms`, with a frame in every one of them or none.
void Run(ReadPace& pace, int64_t& now_ns, int ms, uint64_t bytes_per_ms, bool frames) {
  pace.OnPosted(1, now_ns);  // there is always more
  for (int i = 0; i < ms; ++i) {
    pace.OnPosted(bytes_per_ms, now_ns);
    now_ns += kMs;
    if (frames) pace.OnFrame();
    pace.OnDone(bytes_per_ms, true);
    pace.Measure(now_ns);
  }
  pace.OnDone(1, false);
}

TEST_CASE("READs ahead follow the NIC's speed, and frames", "[verbs][pace]") {
  ReadPace pace;
  int64_t now_ns = kMs;
  // 1 GB/s.
  Run(pace, now_ns, 20, 1'000'000, true);
  CHECK(pace.budget() == 500'000);
  CHECK(pace.work_bytes() == 250'000);
  // Nobody sends frames any more: after a while there may be more.
  Run(pace, now_ns, 40, 1'000'000, false);
  CHECK(pace.budget() == 8'000'000);
  CHECK(pace.work_bytes() == ReadPace::kWorkBytesMax);
  // A frame: down step by step.
  Run(pace, now_ns, 1, 1'000'000, true);
  CHECK(pace.budget() == 4'000'000);
  Run(pace, now_ns, 10, 1'000'000, true);
  CHECK(pace.budget() == 500'000);
  // However slow, some; however fast, not more than the limit.
  Run(pace, now_ns, 20, 70'000, true);
  CHECK(pace.budget() == ReadPace::kBudgetMin);
  CHECK(pace.work_bytes() == ReadPace::kBudgetMin);
  Run(pace, now_ns, 1, 40'000'000, true);
  CHECK(pace.budget() == limits::kVerbsReadBytesMax);
}

TEST_CASE("READs that fail, and few bytes, say nothing of the NIC's speed", "[verbs][pace]") {
  ReadPace pace;
  pace.OnPosted(ReadPace::kBudgetFirst, 0);
  CHECK(pace.full());
  pace.OnDone(ReadPace::kBudgetFirst, false);
  pace.Measure(100 * kMs);
  CHECK(pace.budget() == ReadPace::kBudgetFirst);
  pace.OnPosted(1000, 0);
  pace.OnDone(1000, true);
  pace.Measure(100 * kMs);
  CHECK(pace.budget() == ReadPace::kBudgetFirst);
  CHECK(pace.posted() == 0);
}

}  // namespace
}  // namespace verbena::fabric::verbs
