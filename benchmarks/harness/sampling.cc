#include "benchmarks/harness/sampling.h"

#include <algorithm>

#include "benchmarks/harness/histogram.h"

namespace verbena::benchmarks {

const char* UnitOf(const Row& row) {
  switch (row.metric) {
    case Metric::kLatency:
    case Metric::kP99:
      return "ns";
    case Metric::kRate:
      return "1/s";
    case Metric::kThroughput:
      return "B/s";
    case Metric::kCounter:
      return row.counter == "memory_bytes" ? "B" : "per operation";
    case Metric::kValue:
    case Metric::kGain:
      break;
  }
  return "";
}

std::vector<Sample> Undisturbed(const std::vector<Sample>& all, double foreign_max) {
  std::vector<double> switches;
  for (const Sample& s : all) switches.push_back(s.switches);
  const double limit = std::max(kSwitchesMax, 2 * Median(switches));
  std::vector<Sample> kept;
  for (const Sample& s : all) {
    const bool quiet = s.switches <= limit && s.foreign <= foreign_max;
    if (s.line_class != LineClass::kMixed && quiet) kept.push_back(s);
  }
  return kept;
}

std::vector<Sample> Kept(const Row& row, const std::vector<Sample>& all, double foreign_max) {
  return row.metric == Metric::kCounter || row.device ? all : Undisturbed(all, foreign_max);
}

Summary Summarize(const std::vector<Sample>& kept, LineClass line_class) {
  std::vector<double> values;
  std::vector<double> p99s;
  std::vector<double> lines;
  std::vector<double> switches;
  for (const Sample& s : kept) {
    if (s.line_class != line_class) continue;
    values.push_back(s.value);
    p99s.push_back(s.p99);
    lines.push_back(s.line_ns);
    switches.push_back(s.switches);
  }
  return Summary{values.size(), Median(values), Median(p99s), Median(lines), Median(switches)};
}

}  // namespace verbena::benchmarks
