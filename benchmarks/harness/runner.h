#pragma once
// Runs rows: starts every side's two processes, opens windows in turn with a line ping-pong between
// them, classifies.
#include <string>
#include <vector>

#include "benchmarks/harness/row.h"
#include "benchmarks/harness/sampling.h"

namespace verbena::benchmarks {

struct RunOptions {
  std::string program_directory;
  double window_seconds = 0.25;  // at most 0.3: the line's class holds for seconds at best
  int windows = 9;               // per side; up to twice that where a class lacks windows
  int server_core = 0;
  int client_core = 1;
  double near_below_ns = kNearBelowNs;
  double foreign_max = kForeignMax;
};

struct SideResult {
  Side side;
  std::string skipped;  // why there is nothing, or empty
  std::vector<Sample> kept;
  size_t dropped = 0;
  uint64_t rnr_events = 0;  // of all RDMA devices, in its windows
};

struct RowResult {
  Row row;
  SideResult ours;
  std::vector<SideResult> peers;
};

RowResult RunRow(const Row& row, const RunOptions& options);

}  // namespace verbena::benchmarks
