#pragma once
// What NICs and the GPUs in use are to each other, as plain values for whoever prints it. Includes
// no verbs header.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/fabric/verbs/report.h"
#include "rpc/memory/nic_access.h"
#include "rpc/topology/pci.h"

namespace verbena::fabric::verbs {

// A pattern that a NIC wrote into a GPU's memory, and read there.
struct GpuTrial {
  bool ran = false;
  bool works = false;
  std::string text;  // of the first thing that failed, or why it did not run
};

struct GpuReport {
  std::string name;  // "cuda:0"
  memory::NicFacts nic;
  uint64_t registered_bytes_max = 0;  // of its memory, by this library
  std::string nearest;                // NIC; empty: of none it is known
  int distance = -1;                  // to that one, as topology/pci.h
  std::string tried;                  // the NIC of the trial
  GpuTrial trial;
};

// The GPUs that this process uses. Any thread.
std::vector<memory::Device*> KnownGpus();
// A NIC's distance to the nearest of them; -1: not known. Reads files. Any thread.
int DistanceToGpus(absl::string_view nic, absl::string_view root = topology::kSysfs);
// Tries each with its nearest NIC that has a usable port, else with any that has; makes contexts
// on the GPUs then. Some ms each. Any thread that may wait; not while links are there.
std::vector<GpuReport> ReportGpus(absl::Span<memory::Device* const> gpus,
                                  const VerbsReport& devices,
                                  absl::string_view root = topology::kSysfs);

}  // namespace verbena::fabric::verbs
