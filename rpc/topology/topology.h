#pragma once
// What this machine looks like to this process: its NUMA nodes, the CPUs it may use there, how far
// nodes are apart; and pinning. Only CPUs in the process's affinity mask and cpuset count, so a
// container with two CPUs sees two.
//
//   for (const topology::Node& node : topology::Topology::Get().nodes()) StartReactor(node.index,
//   node.cpus);
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace verbena::topology {

struct Node {
  int index = 0;              // the system's number of the NUMA node
  std::vector<int> cpus;      // usable by this process, ascending; never empty
  uint64_t memory_bytes = 0;  // local memory; 0 = unknown
};

class Topology {
 public:
  // This machine, as of the first call (some ms). A machine that cannot be examined is one node
  // with all CPUs of the affinity mask. Any thread.
  static const Topology& Get();
  // From hwloc's description of a machine, such as "numa:2 core:2 pu:1". For tests.
  static absl::StatusOr<Topology> FromSynthetic(const std::string& description);

  // Nodes with at least one usable CPU, by index; at least one.
  absl::Span<const Node> nodes() const { return nodes_; }
  // Null: no such node, or no usable CPU there.
  const Node* FindNode(int index) const;
  // The node of a CPU; -1 = not one of ours.
  int NodeOfCpu(int cpu) const;
  // Relative memory latency as the firmware tells it: 10 = local, 20 = twice that. 10 and 20 where
  // it tells nothing.
  int Distance(int from_node, int to_node) const;

 private:
  friend class Builder;
  std::vector<Node> nodes_;
  std::vector<int> distances_;  // nodes_.size() squared, row by row
};

// Pins the calling thread to these CPUs. INVALID_ARGUMENT (empty, out of range),
// FAILED_PRECONDITION (none of them may be used by this process: names them). Any thread.
absl::Status PinThread(absl::Span<const int> cpus);

// The CPU on which the calling thread runs now. Any thread; some ns.
int CurrentCpu();

}  // namespace verbena::topology
