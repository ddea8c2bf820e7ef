#include "rpc/base/clock.h"

#include <time.h>

#include <thread>

#include "tests/catch.h"

namespace {

int64_t SystemNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

}  // namespace

TEST_CASE("the steady clock does not go back and keeps the system's pace", "[clock]") {
  const int64_t system_start = SystemNs();
  const int64_t start = verbena::SteadyNs();
  int64_t last = start;
  for (int i = 0; i < 100'000; ++i) {
    const int64_t now = verbena::SteadyNs();
    REQUIRE(now >= last);
    last = now;
  }
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  const int64_t system_end = SystemNs();
  const double ratio = static_cast<double>(verbena::SteadyNs() - start) /
                       static_cast<double>(system_end - system_start);
  // Both intervals end within a time slice of each other; a wrong scale would be off by far more.
  CHECK(ratio > 0.8);
  CHECK(ratio < 1.2);
}
