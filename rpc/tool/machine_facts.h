#pragma once
// What `verbena doctor` looks at: plain values, so that what follows from them can be tested with
// machines that nobody has at hand.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rpc/fabric/verbs/gpu_report.h"
#include "rpc/fabric/verbs/memlock.h"
#include "rpc/fabric/verbs/report.h"

namespace verbena::tool {

struct NodeFacts {
  int index = 0;
  int cpus = 0;  // that this process may use
  uint64_t memory_bytes = 0;
  std::vector<int> distances;  // to each node, in the same order
};

struct MemoryFacts {
  uint64_t pool_bytes_max = 0;  // what the library's pools may grow to
  fabric::verbs::LockLimits lock;
  std::string transparent;         // of private memory: "always", "madvise" or "never"
  std::string transparent_shared;  // of shared memory, where the pools lie
  std::optional<bool> pools_huge;  // what a slab really got; nothing: none could be made
  struct Reserved {
    uint64_t page_bytes = 0;
    uint64_t total = 0;
    uint64_t free = 0;
  };
  std::vector<Reserved> reserved;  // hugetlb pages
};

struct GpuFacts {
  bool driver = false;  // NVIDIA's is loaded
  std::string driver_version;
  bool peermem = false;   // nvidia_peermem, or its forerunner
  std::string none;       // why this process has no GPU; empty: it has some
  bool unusable = false;  // there is a libcuda, and that is why
  std::vector<fabric::verbs::GpuReport> devices;
};

struct IommuFacts {
  std::vector<std::string> units;    // in /sys/class/iommu
  std::map<std::string, int> modes;  // groups of devices by mode: "identity", "DMA-FQ"
  std::vector<std::string> words;    // of the kernel's command line
};

// Whether a transport works in this process, by trying it.
struct TransportFacts {
  std::string name;
  bool usable = false;
  std::string text;  // why not, or what was done
};

struct MachineFacts {
  std::string kernel;  // release
  std::vector<NodeFacts> nodes;
  MemoryFacts memory;
  GpuFacts gpu;
  IommuFacts iommu;
  fabric::verbs::VerbsReport verbs;
  std::vector<TransportFacts> transports;
};

// Looks at this machine: opens its RDMA devices, makes a slab, sends over each port, and has a NIC
// write into each GPU, which takes a context there where both are. Takes up to some seconds. Not on
// a reactor.
MachineFacts GatherFacts();

// "always [madvise] never" -> "madvise".
std::string ChosenWord(absl::string_view line);
// Those words of a kernel command line that are about IOMMUs.
std::vector<std::string> IommuWords(absl::string_view command_line);

}  // namespace verbena::tool
