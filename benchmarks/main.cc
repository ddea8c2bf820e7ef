// The benchmark driver: runs the rows whose name matches, prints a table, appends JSON lines.
#include <sched.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/flags/usage.h"
#include "absl/flags/usage_config.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "benchmarks/harness/report.h"
#include "benchmarks/harness/runner.h"

ABSL_FLAG(bool, quick, false, "3 windows of 0.1 s per participant instead of 9 of 0.25 s");
ABSL_FLAG(bool, all, false, "print every variant of a peer, not only its best");
ABSL_FLAG(bool, verbs, false,
          "the rows over RDMA devices of this machine instead, beside perftest");
ABSL_FLAG(bool, list, false, "print the rows' names and stop");
ABSL_FLAG(std::string, results, "results.jsonl", "file to which JSON lines are appended");
ABSL_FLAG(int, windows, 0, "windows per participant; 0: as --quick says");
ABSL_FLAG(double, window_seconds, 0, "length of a window, at most 0.3; 0: as --quick says");
ABSL_FLAG(int, server_core, 0, "core of every server");
ABSL_FLAG(int, client_core, 1, "core of every client");
ABSL_FLAG(double, near_below_ns, verbena::benchmarks::kNearBelowNs,
          "a line round trip below this is class near, else far");
ABSL_FLAG(double, foreign_max, verbena::benchmarks::kForeignMax,
          "drop windows in which others used more than this share of the two cores; 1: keep all");

namespace verbena::benchmarks {
namespace {

RunOptions Options(const char* program) {
  RunOptions options;
  options.program_directory = std::filesystem::canonical("/proc/self/exe").parent_path().string();
  const bool quick = absl::GetFlag(FLAGS_quick);
  options.windows = quick ? 3 : 9;
  options.window_seconds = quick ? 0.1 : 0.25;
  if (absl::GetFlag(FLAGS_windows) > 0) options.windows = absl::GetFlag(FLAGS_windows);
  if (absl::GetFlag(FLAGS_window_seconds) > 0)
    options.window_seconds = absl::GetFlag(FLAGS_window_seconds);
  if (options.window_seconds > 0.3) {
    std::fprintf(stderr, "%s: a window longer than 0.3 s outlives the line's class; using 0.3\n",
                 program);
    options.window_seconds = 0.3;
  }
  options.server_core = absl::GetFlag(FLAGS_server_core);
  options.client_core = absl::GetFlag(FLAGS_client_core);
  options.near_below_ns = absl::GetFlag(FLAGS_near_below_ns);
  options.foreign_max = absl::GetFlag(FLAGS_foreign_max);
  return options;
}

bool Matches(const Row& row, const std::vector<char*>& filters) {
  if (filters.empty()) return true;
  const std::string name = absl::StrCat(row.name, "/", row.transport);
  for (const char* filter : filters) {
    if (absl::StrContains(name, filter)) return true;
  }
  return false;
}

bool CoresUsable(const RunOptions& options) {
  cpu_set_t before;
  sched_getaffinity(0, sizeof(before), &before);
  const bool usable = PinToCore(options.server_core) && PinToCore(options.client_core);
  if (!usable) {
    std::fprintf(
        stderr,
        "cores %d and %d are not both allowed here; choose with --server_core, --client_core\n",
        options.server_core, options.client_core);
  }
  sched_setaffinity(0, sizeof(before), &before);
  return usable;
}

// Others who use the cores make every number worse, ours and the peers' unevenly.
void WarnWhenBusy() {
  double load = 0;
  if (getloadavg(&load, 1) == 1 && load > 0.5) {
    std::fprintf(stderr,
                 "the machine is busy (load %.1f): expect dropped windows and numbers too high\n",
                 load);
  }
}

std::vector<Row> WantedRows() { return absl::GetFlag(FLAGS_verbs) ? VerbsRows() : AllRows(); }

// What devices counted while ours were measured, as a row of its own.
void AddRnrEvents(uint64_t events, std::vector<Line>& lines) {
  Line line;
  line.name = "rnr_events";
  line.transport = "verbs";
  line.value = static_cast<double>(events);
  line.must = 0;
  line.line_class = "any";
  line.flags = {events == 0 ? "must: met" : "must: missed"};
  lines.push_back(std::move(line));
}

int Main(const char* program, const std::vector<char*>& filters) {
  const RunOptions options = Options(program);
  if (absl::GetFlag(FLAGS_list)) {
    for (const Row& row : WantedRows())
      std::printf("%s/%s\n", row.name.c_str(), row.transport.c_str());
    return 0;
  }
  std::vector<Row> rows = WantedRows();
  std::erase_if(rows, [&filters](const Row& row) { return !Matches(row, filters); });
  if (rows.empty()) {
    std::fprintf(stderr, "no row matches; --list names them\n");
    return 2;
  }
  if (!CoresUsable(options)) return 1;
  std::ofstream results(absl::GetFlag(FLAGS_results), std::ios::app);
  if (!results) {
    std::fprintf(stderr, "cannot append to %s\n", absl::GetFlag(FLAGS_results).c_str());
    return 1;
  }
  std::printf(
      "cores: server %d, client %d; %d windows of %.2f s; line near below %.0f ns, now %.0f ns\n",
      options.server_core, options.client_core, options.windows, options.window_seconds,
      options.near_below_ns, MeasureLineNs(options.client_core, options.server_core));
  WarnWhenBusy();
  std::vector<Line> lines;
  uint64_t rnr_events = 0;
  for (const Row& row : rows) {
    std::fprintf(stderr, "%s over %s…\n", row.name.c_str(), row.transport.c_str());
    const RowResult result = RunRow(row, options);
    rnr_events += result.ours.rnr_events;
    for (Line& line : Compare(result)) {
      results << ToJson(line).dump() << '\n';
      lines.push_back(std::move(line));
    }
    results.flush();
  }
  if (absl::GetFlag(FLAGS_verbs)) {
    AddRnrEvents(rnr_events, lines);
    results << ToJson(lines.back()).dump() << '\n';
  }
  std::fputs(Table(lines, absl::GetFlag(FLAGS_all)).c_str(), stdout);
  std::fputs(MissingNumbers(lines).c_str(), stdout);
  return 0;
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  absl::SetProgramUsageMessage(
      "measures Verbena beside its peers: bench_driver [flags] [part of a row's name]...");
  absl::FlagsUsageConfig usage;
  usage.contains_help_flags = [](absl::string_view file) {
    return absl::EndsWith(file, "benchmarks/main.cc");
  };
  usage.contains_helpshort_flags = usage.contains_help_flags;
  absl::SetFlagsUsageConfig(usage);
  std::vector<char*> filters = absl::ParseCommandLine(argc, argv);
  filters.erase(filters.begin());
  return verbena::benchmarks::Main(argv[0], filters);
}
