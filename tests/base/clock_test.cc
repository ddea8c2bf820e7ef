#include "rpc/base/clock.h"

#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <string_view>
#include <thread>

#include "rpc/base/clock_source.h"
#include "rpc/base/unique_fd.h"
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

TEST_CASE("the counter is taken for a clock where the kernel names it, and nothing like it",
          "[clock]") {
  char path[] = "/tmp/verbena-clock-XXXXXX";
  const verbena::UniqueFd file(mkstemp(path));
  REQUIRE(file.get() >= 0);
  const auto names_tsc = [&](std::string_view text) {
    REQUIRE(ftruncate(file.get(), 0) == 0);
    REQUIRE(pwrite(file.get(), text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()));
    return verbena::internal::NamesTsc(path);
  };
  CHECK(names_tsc("tsc\n"));
  CHECK_FALSE(names_tsc("tsc-early\n"));
  CHECK_FALSE(names_tsc("kvm-clock\n"));
  CHECK_FALSE(names_tsc("hyperv_clocksource_tsc_page\n"));
  CHECK_FALSE(names_tsc(""));
  unlink(path);
  CHECK_FALSE(verbena::internal::NamesTsc(path));
}
