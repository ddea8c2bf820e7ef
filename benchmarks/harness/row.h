#pragma once
// What the driver runs: a row is one piece of work, done by Verbena ("ours") and by its peers, in
// interleaved windows.
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "benchmarks/harness/line.h"

namespace verbena::benchmarks {

enum class Metric {
  kLatency,     // ns per operation, p50 of each window; lower is better
  kP99,         // ns per operation, p99 of each window; lower is better
  kRate,        // operations per second
  kThroughput,  // bytes per second
  kCounter,     // growth of `Row::counter` per operation; lower is better
  kValue,       // the number that the workload set; lower is better
  kGain,        // the same; higher is better
};

inline bool LowerIsBetter(Metric m) {
  return m != Metric::kRate && m != Metric::kThroughput && m != Metric::kGain;
}

// A bound on value / peer_value (on the value itself for a row without peer), per class.
struct Must {
  double near = 0;
  double far = 0;
};

// One participant: a program that links the harness, and its settings.
struct Side {
  std::string peer;     // grpc, ucx, memcpy, raw, process_vm_readv, self; empty for ours
  std::string variant;  // among those with one `peer` the best counts
  std::string program;  // beside the driver
  std::map<std::string, std::string> params;
  std::string preload;                   // a shared library, searched in the usual folders
  std::vector<std::string> environment;  // NAME=value
  std::optional<Must> must;
};

struct Row {
  std::string name;
  std::string transport;
  uint64_t payload_bytes = 0;
  uint64_t outstanding = 1;
  Metric metric = Metric::kLatency;
  Side ours;
  std::vector<Side> peers;
  bool same_core = false;
  int windows = 0;            // exactly so many; 0: as the run says
  double window_seconds = 0;  // 0: as the run says
  // Through a device that others' processes and the kernel work for: the line between the cores
  // says little, and time that no participant used is no sign that a window was disturbed.
  bool device = false;
  std::string
      counter;  // for kCounter: allocations (of both processes), memory_bytes (of the server)
  std::optional<Must> must_alone;       // bound on the value itself
  std::optional<double> must_p99_near;  // bound on the p99 in ns, near
};

// Whether the line between the cores has no part in a row's number.
inline bool Classless(const Row& row) {
  return row.same_core || row.device || row.metric == Metric::kCounter ||
         row.metric == Metric::kValue || row.metric == Metric::kGain;
}

const char* UnitOf(const Row& row);

// Every line of the targets, in order of the table that is printed.
std::vector<Row> AllRows();
// The same for what goes through RDMA devices.
std::vector<Row> VerbsRows();

}  // namespace verbena::benchmarks
