#pragma once
// What a run leaves: JSON lines for programs, a table for people.
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/runner.h"

namespace verbena::benchmarks {

// One line of the results: one row, one peer variant, one class.
struct Line {
  std::string name, transport, peer, variant, line_class, unit;
  uint64_t payload_bytes = 0;
  uint64_t outstanding = 0;
  std::optional<double> value, p99, peer_value, peer_p99, ratio, must;
  bool lower_is_better = true;
  bool best = true;  // of the variants of this peer, in this class; in no class: of all its lines
  double line_ns = 0;
  double switches =
      0;  // involuntary, median per kept window: ours, or the peer's when ours is absent
  size_t windows = 0, peer_windows = 0, dropped = 0;
  std::vector<std::string>
      flags;  // "ours: skipped: …", "peer: skipped: …", "must: met", "must: missed", …
};

// Compares inside each class; marks the best variant of each peer.
std::vector<Line> Compare(const RowResult& result);

nlohmann::json ToJson(const Line& line);
// Values with a fitting unit: 412 ns, 9.3 us, 10.4 M/s, 6.9 GB/s.
std::string Readable(double value, const std::string& unit);
// Only the best variant of each peer, unless `all`. Reasons for skipping are listed once, below the
// table.
std::string Table(const std::vector<Line>& lines, bool all);
// One line with the cure where numbers are missing because windows were dropped, else empty.
std::string MissingNumbers(const std::vector<Line>& lines);

}  // namespace verbena::benchmarks
