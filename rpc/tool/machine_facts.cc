#include "rpc/tool/machine_facts.h"

#include <sys/utsname.h>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "rpc/memory/pool.h"
#include "rpc/memory/slab.h"
#include "rpc/tool/transports.h"
#include "rpc/topology/topology.h"
#include "verbena/gpu.h"

namespace verbena::tool {
namespace {

using fabric::verbs::NamesIn;
using fabric::verbs::ReadLine;

// Large enough that the kernel has a choice of page.
constexpr uint64_t kTrialBytes = memory::Slab::kAlignment;

std::vector<NodeFacts> GatherNodes() {
  std::vector<NodeFacts> all;
  const topology::Topology& machine = topology::Topology::Get();
  for (const topology::Node& node : machine.nodes()) {
    NodeFacts facts;
    facts.index = node.index;
    facts.cpus = static_cast<int>(node.cpus.size());
    facts.memory_bytes = node.memory_bytes;
    for (const topology::Node& other : machine.nodes()) {
      facts.distances.push_back(machine.Distance(node.index, other.index));
    }
    all.push_back(std::move(facts));
  }
  return all;
}

std::vector<MemoryFacts::Reserved> GatherReserved() {
  std::vector<MemoryFacts::Reserved> all;
  const std::string folder = "/sys/kernel/mm/hugepages";
  for (const std::string& name : NamesIn(folder)) {  // "hugepages-2048kB"
    absl::string_view size = name;
    uint64_t kib = 0;
    if (!absl::ConsumePrefix(&size, "hugepages-") || !absl::ConsumeSuffix(&size, "kB") ||
        !absl::SimpleAtoi(size, &kib)) {
      continue;
    }
    MemoryFacts::Reserved reserved;
    reserved.page_bytes = kib * 1024;
    const std::string path = absl::StrCat(folder, "/", name);
    // What cannot be read stays 0.
    (void)absl::SimpleAtoi(ReadLine(path + "/nr_hugepages"), &reserved.total);
    (void)absl::SimpleAtoi(ReadLine(path + "/free_hugepages"), &reserved.free);
    all.push_back(reserved);
  }
  return all;
}

MemoryFacts GatherMemory() {
  MemoryFacts facts;
  facts.pool_bytes_max = memory::PoolBytesMax();
  facts.lock = fabric::verbs::CurrentLockLimits();
  const std::string folder = "/sys/kernel/mm/transparent_hugepage/";
  facts.transparent = ChosenWord(ReadLine(folder + "enabled"));
  facts.transparent_shared = ChosenWord(ReadLine(folder + "shmem_enabled"));
  facts.reserved = GatherReserved();
  const auto slab = memory::Slab::Create(kTrialBytes, -1);
  if (slab.ok()) facts.pools_huge = (*slab)->huge_pages();
  return facts;
}

GpuFacts GatherGpu() {
  GpuFacts facts;
  facts.driver_version = ReadLine("/sys/module/nvidia/version");
  facts.driver = !NamesIn("/sys/module/nvidia").empty() || !NamesIn("/proc/driver/nvidia").empty();
  facts.peermem =
      !NamesIn("/sys/module/nvidia_peermem").empty() || !NamesIn("/sys/module/nv_peer_mem").empty();
  return facts;
}

IommuFacts GatherIommu() {
  IommuFacts facts;
  facts.units = NamesIn("/sys/class/iommu");
  const std::string folder = "/sys/kernel/iommu_groups";
  for (const std::string& group : NamesIn(folder)) {
    const std::string mode = ReadLine(absl::StrCat(folder, "/", group, "/type"));
    ++facts.modes[mode.empty() ? "unknown" : mode];
  }
  facts.words = IommuWords(ReadLine("/proc/cmdline"));
  return facts;
}

}  // namespace

std::string ChosenWord(absl::string_view line) {
  for (absl::string_view word : absl::StrSplit(line, ' ', absl::SkipEmpty())) {
    if (absl::ConsumePrefix(&word, "[") && absl::ConsumeSuffix(&word, "]")) {
      return std::string(word);
    }
  }
  return {};
}

std::vector<std::string> IommuWords(absl::string_view command_line) {
  std::vector<std::string> words;
  for (absl::string_view word :
       absl::StrSplit(command_line, absl::ByAnyChar(" \t\n"), absl::SkipEmpty())) {
    if (absl::StrContains(word, "iommu") || absl::StartsWith(word, "pci=")) {
      words.emplace_back(word);
    }
  }
  return words;
}

MachineFacts GatherFacts() {
  MachineFacts facts;
  utsname system{};
  if (uname(&system) == 0) facts.kernel = system.release;
  facts.nodes = GatherNodes();
  facts.memory = GatherMemory();
  facts.gpu = GatherGpu();
  // Before NICs are chosen, which GPUs have a say in.
  const absl::Status gpus = UseGpus();
  facts.gpu.none = std::string(gpus.message());
  facts.gpu.unusable = absl::IsFailedPrecondition(gpus);
  facts.iommu = GatherIommu();
  facts.verbs = fabric::verbs::ReportDevices(fabric::verbs::Settings::FromEnvironment());
  facts.gpu.devices = fabric::verbs::ReportGpus(fabric::verbs::KnownGpus(), facts.verbs);
  facts.transports = TryTransports();
  return facts;
}

}  // namespace verbena::tool
