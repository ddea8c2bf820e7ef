#include "rpc/topology/topology.h"

#include <hwloc.h>
#include <hwloc/distances.h>
#include <sched.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/base/log.h"

namespace verbena::topology {
namespace {

// Large enough for any machine today; sched_getaffinity fails with EINVAL when the kernel's mask is
// longer.
constexpr int kCpusMax = 8192;

struct CpuSet {
  CpuSet() : set(CPU_ALLOC(kCpusMax)) { CPU_ZERO_S(bytes(), set); }
  ~CpuSet() { CPU_FREE(set); }
  CpuSet(const CpuSet&) = delete;
  CpuSet& operator=(const CpuSet&) = delete;
  static size_t bytes() { return CPU_ALLOC_SIZE(kCpusMax); }
  bool Has(int cpu) const {
    return cpu >= 0 && cpu < kCpusMax && CPU_ISSET_S(static_cast<size_t>(cpu), bytes(), set);
  }
  void Add(int cpu) { CPU_SET_S(static_cast<size_t>(cpu), bytes(), set); }
  cpu_set_t* set;
};

std::vector<int> AffinityCpus() {
  CpuSet allowed;
  std::vector<int> cpus;
  if (sched_getaffinity(0, CpuSet::bytes(), allowed.set) == 0) {
    for (int cpu = 0; cpu < kCpusMax; ++cpu) {
      if (allowed.Has(cpu)) cpus.push_back(cpu);
    }
  }
  if (cpus.empty()) cpus.push_back(0);
  return cpus;
}

}  // namespace

class Builder {
 public:
  // `usable`: null = every CPU of the description.
  static void Fill(hwloc_topology_t machine, const std::vector<int>* usable, Topology& out) {
    std::vector<hwloc_obj_t> objects;
    hwloc_obj_t object = nullptr;
    while ((object = hwloc_get_next_obj_by_type(machine, HWLOC_OBJ_NUMANODE, object)) != nullptr) {
      Node node;
      node.index = static_cast<int>(object->os_index);
      node.memory_bytes = object->attr->numanode.local_memory;
      for (int cpu = hwloc_bitmap_next(object->cpuset, -1); cpu >= 0;
           cpu = hwloc_bitmap_next(object->cpuset, cpu)) {
        if (usable == nullptr || std::binary_search(usable->begin(), usable->end(), cpu)) {
          node.cpus.push_back(cpu);
        }
      }
      if (node.cpus.empty()) continue;  // memory only, or not ours
      out.nodes_.push_back(std::move(node));
      objects.push_back(object);
    }
    FillDistances(machine, objects, out);
  }

  static void FillFlat(const std::vector<int>& cpus, Topology& out) {
    out.nodes_ = {Node{0, cpus, 0}};
    out.distances_ = {10};
  }

 private:
  static void FillDistances(hwloc_topology_t machine, const std::vector<hwloc_obj_t>& objects,
                            Topology& out) {
    const size_t n = objects.size();
    out.distances_.assign(n * n, 20);
    for (size_t i = 0; i < n; ++i) out.distances_[i * n + i] = 10;
    hwloc_distances_s* told = nullptr;
    unsigned count = 1;
    if (hwloc_distances_get_by_type(machine, HWLOC_OBJ_NUMANODE, &count, &told,
                                    HWLOC_DISTANCES_KIND_MEANS_LATENCY, 0) != 0 ||
        count == 0) {
      return;
    }
    for (size_t i = 0; i < n; ++i) {
      for (size_t j = 0; j < n; ++j) {
        hwloc_uint64_t there = 0, back = 0;
        if (hwloc_distances_obj_pair_values(told, objects[i], objects[j], &there, &back) == 0) {
          out.distances_[i * n + j] = static_cast<int>(there);
        }
      }
    }
    hwloc_distances_release(machine, told);
  }
};

const Topology& Topology::Get() {
  static const Topology* topology = [] {
    auto* result = new Topology;
    const std::vector<int> usable = AffinityCpus();
    hwloc_topology_t machine;
    if (hwloc_topology_init(&machine) == 0) {
      if (hwloc_topology_load(machine) == 0) Builder::Fill(machine, &usable, *result);
      hwloc_topology_destroy(machine);
    }
    if (result->nodes_.empty()) {
      VERBENA_LOG(kWarning, "hwloc finds no NUMA node with a usable CPU: taking all ",
                  usable.size(), " CPUs as one node");
      Builder::FillFlat(usable, *result);
    }
    return result;
  }();
  return *topology;
}

absl::StatusOr<Topology> Topology::FromSynthetic(const std::string& description) {
  hwloc_topology_t machine;
  if (hwloc_topology_init(&machine) != 0) return absl::InternalError("hwloc_topology_init failed");
  Topology result;
  const bool loaded = hwloc_topology_set_synthetic(machine, description.c_str()) == 0 &&
                      hwloc_topology_load(machine) == 0;
  if (loaded) Builder::Fill(machine, nullptr, result);
  hwloc_topology_destroy(machine);
  if (!loaded || result.nodes_.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat("not a machine with a NUMA node and a CPU: \"", description, "\""));
  }
  return result;
}

const Node* Topology::FindNode(int index) const {
  for (const Node& node : nodes_) {
    if (node.index == index) return &node;
  }
  return nullptr;
}

int Topology::NodeOfCpu(int cpu) const {
  for (const Node& node : nodes_) {
    if (std::binary_search(node.cpus.begin(), node.cpus.end(), cpu)) return node.index;
  }
  return -1;
}

int Topology::Distance(int from_node, int to_node) const {
  const Node* from = FindNode(from_node);
  const Node* to = FindNode(to_node);
  if (from == nullptr || to == nullptr) return from_node == to_node ? 10 : 20;
  const auto row = static_cast<size_t>(from - nodes_.data());
  return distances_[row * nodes_.size() + static_cast<size_t>(to - nodes_.data())];
}

absl::Status PinThread(absl::Span<const int> cpus) {
  if (cpus.empty()) return absl::InvalidArgumentError("cannot pin a thread to no CPU");
  CpuSet wanted;
  for (int cpu : cpus) {
    if (cpu < 0 || cpu >= kCpusMax) {
      return absl::InvalidArgumentError(
          absl::StrCat("cannot pin a thread to CPU ", cpu, ": CPUs are 0 to ", kCpusMax - 1));
    }
    wanted.Add(cpu);
  }
  if (sched_setaffinity(0, CpuSet::bytes(), wanted.set) == 0) return absl::OkStatus();
  const int error = errno;
  return absl::FailedPreconditionError(absl::StrCat(
      "cannot pin a thread to CPUs ", absl::StrJoin(cpus, ","), ": ", std::strerror(error)));
}

int CurrentCpu() { return sched_getcpu(); }

}  // namespace verbena::topology
