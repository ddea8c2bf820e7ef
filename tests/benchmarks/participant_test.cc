// Two real processes under the driver.
#include <sched.h>

#include <thread>

#include "benchmarks/harness/report.h"
#include "benchmarks/harness/runner.h"
#include "tests/catch.h"
#include "tests/transports.h"

namespace verbena::benchmarks {
namespace {

RunOptions Short() {
  RunOptions options;
  options.program_directory = VERBENA_BENCHMARK_PROGRAMS;
  options.windows = 1;
  options.foreign_max = 1;  // other tests may run beside this one
  options.window_seconds = 0.02;
  // The first two cores that are allowed here, or one twice.
  cpu_set_t set;
  sched_getaffinity(0, sizeof(set), &set);
  std::vector<int> cores;
  for (int i = 0; i < CPU_SETSIZE; ++i) {
    if (CPU_ISSET(i, &set)) cores.push_back(i);
  }
  options.server_core = cores.front();
  options.client_core = cores.size() > 1 ? cores[1] : cores.front();
  return options;
}

Side Raw(const char* workload) {
  Side side;
  side.program = "bench_raw";
  side.params = {{"workload", workload}};
  return side;
}

// Whatever core the runner pinned this thread to, the next test starts free.
class KeepAffinity {
 public:
  KeepAffinity() { sched_getaffinity(0, sizeof(set_), &set_); }
  ~KeepAffinity() { sched_setaffinity(0, sizeof(set_), &set_); }

 private:
  cpu_set_t set_;
};

TEST_CASE("a ping-pong between two processes is measured in interleaved windows", "[benchmarks]") {
  const KeepAffinity keep;
  Row row;
  row.name = "ping";
  row.payload_bytes = 32;
  row.same_core = true;  // works on one core too; its class does not depend on the line
  for (const std::string& transport : TestTransports()) {
    row.transport = transport;
    row.ours = Raw("ping_pong");
    row.peers = {Raw("ping_pong")};
    const RowResult result = RunRow(row, Short());
    REQUIRE(result.ours.skipped == "");
    REQUIRE(result.ours.kept.size() >= 1);
    REQUIRE(result.ours.kept[0].value > 100);  // ns: no socket answers faster
    REQUIRE(result.ours.kept[0].p99 >= result.ours.kept[0].value);
    REQUIRE(result.peers[0].kept.size() >= 1);
  }
}

TEST_CASE("bulk is counted in bytes per second", "[benchmarks]") {
  const KeepAffinity keep;
  Row row;
  row.transport = "tcp";
  row.payload_bytes = 1 << 20;
  row.metric = Metric::kThroughput;
  row.same_core = true;
  row.ours = Raw("stream");
  row.peers = {Raw("vm_readv")};
  const RowResult result = RunRow(row, Short());
  REQUIRE(result.ours.skipped == "");
  REQUIRE(result.ours.kept.at(0).value > 10e6);
  REQUIRE(result.ours.kept.at(0).value < 1e12);
}

TEST_CASE("a participant that cannot start is skipped with the reason", "[benchmarks]") {
  const KeepAffinity keep;
  Row row;
  row.ours = Raw("no such work");
  Side missing = Raw("ping_pong");
  missing.program = "bench_missing";
  Side unloadable = Raw("ping_pong");
  unloadable.preload = "libmissing.so.9";
  row.peers = {missing, unloadable};
  const RowResult result = RunRow(row, Short());
  REQUIRE_THAT(result.ours.skipped, Catch::ContainsSubstring("no such work"));
  REQUIRE_THAT(result.peers[0].skipped, Catch::ContainsSubstring("bench_missing"));
  REQUIRE_THAT(result.peers[1].skipped, Catch::ContainsSubstring("libmissing.so.9"));
}

}  // namespace
}  // namespace verbena::benchmarks
