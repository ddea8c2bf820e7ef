// What `verbena doctor` prints for people.
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "rpc/tool/doctor.h"

namespace verbena::tool {
namespace {

using fabric::verbs::DeviceLimits;
using fabric::verbs::DeviceReport;
using fabric::verbs::LockLimits;
using fabric::verbs::PortReport;

std::string Size(uint64_t bytes) {
  if (bytes == UINT64_MAX) return "unlimited";
  if (bytes >= uint64_t{10} << 30) return absl::StrCat(bytes >> 30, " GiB");
  if (bytes >= uint64_t{10} << 20) return absl::StrCat(bytes >> 20, " MiB");
  if (bytes >= 10 << 10) return absl::StrCat(bytes >> 10, " KiB");
  return absl::StrCat(bytes, " B");
}

std::string OrUnknown(absl::string_view text) {
  return text.empty() ? std::string("unknown") : std::string(text);
}

std::string Counted(std::optional<uint64_t> count) {
  return count.has_value() ? absl::StrCat(*count) : std::string("unknown");
}

void PrintNodes(const MachineFacts& facts, std::string& out) {
  absl::StrAppend(&out, "Machine: Linux ", facts.kernel, "\n");
  for (const NodeFacts& node : facts.nodes) {
    absl::StrAppend(
        &out, "  NUMA node ", node.index, ": ", node.cpus, " CPUs, ",
        node.memory_bytes == 0 ? std::string("memory unknown") : Size(node.memory_bytes),
        ", distances ", absl::StrJoin(node.distances, " "), "\n");
  }
}

std::string Dmabuf(const DeviceLimits& limits) {
  return limits.dmabuf ? "yes" : limits.dmabuf_unknown ? "unknown" : "no";
}

void PrintPort(const PortReport& port, std::string& out) {
  absl::StrAppend(&out, "    port ", static_cast<int>(port.facts.port), ": ",
                  port.unusable.empty() ? "usable" : absl::StrCat("NOT usable: ", port.unusable),
                  "\n      ", port.facts.ethernet ? "RoCE" : "InfiniBand", ", ", port.facts.state,
                  port.netdev.empty() ? "" : ", interface ", port.netdev, ", MTU ", port.mtu, ", ",
                  port.facts.speed_mbps / 1000.0, " Gb/s");
  if (!port.facts.ethernet) absl::StrAppend(&out, ", LID ", port.facts.lid);
  absl::StrAppend(&out, "\n      ", port.facts.gid.why, "\n      ", port.facts.pkey.why,
                  "\n      counted since the driver was loaded: RNR ", Counted(port.trouble.rnr),
                  ", retries ", Counted(port.trouble.retries), "\n");
  const fabric::verbs::PortTrial& trial = port.trial;
  if (!trial.ran) return;
  absl::StrAppend(
      &out, "      to itself: SEND ", trial.send ? "works" : "FAILS", ", READ ",
      trial.read ? "works" : "FAILS", trial.error.empty() ? "" : ": ", trial.error, "; window ",
      trial.window ? "works" : absl::StrCat("does not: ", trial.window_error),
      trial.window ? (trial.bounds_enforced ? ", its bounds hold" : ", its bounds do NOT hold")
                   : "",
      "\n");
}

void PrintDevice(const DeviceReport& device, std::string& out) {
  const DeviceLimits& limits = device.limits;
  absl::StrAppend(
      &out, "  ", device.name, device.soft ? " (soft-RoCE)" : "",
      device.firmware.empty() ? "" : ", firmware ", device.firmware, ", NUMA node ",
      device.numa_node < 0 ? std::string("unknown") : absl::StrCat(device.numa_node),
      device.iommu.empty() ? "" : ", IOMMU ", device.iommu, "\n    shared receive queues ",
      limits.srq_max == 0 ? std::string("no")
                          : absl::StrCat(limits.srq_max, " of ", limits.srq_wr_max),
      ", windows 2B ", limits.windows_2b ? absl::StrCat(limits.mw_max) : std::string("no"),
      ", dma-buf ", Dmabuf(limits), ", READ depth ", limits.read_depth_initiator, " out ",
      limits.read_depth_responder, " in, inline ", limits.inline_bytes_hint, " B\n    at most ",
      limits.qp_max, " queue pairs of ", limits.qp_wr_max, " requests, completion queues of ",
      limits.cq_entries_max, ", ", limits.mr_max, " registrations of ", Size(limits.mr_bytes_max),
      ", messages of ", Size(limits.message_bytes_max), "\n");
  for (const PortReport& port : device.ports) PrintPort(port, out);
}

void PrintSettings(const MachineFacts& facts, std::string& out) {
  absl::StrAppend(&out, "RDMA settings:\n");
  std::vector<std::string> unset;
  for (const fabric::verbs::Setting& setting : facts.verbs.settings) {
    if (setting.value.empty()) {
      unset.push_back(setting.name);
      continue;
    }
    absl::StrAppend(&out, "  ", setting.name, "=", absl::CHexEscape(setting.value),
                    setting.problem.empty() ? "" : " (see below)", "\n");
  }
  absl::StrAppend(&out, "  not set: ", absl::StrJoin(unset, " "), "\n");
}

void PrintVerbs(const MachineFacts& facts, std::string& out) {
  PrintSettings(facts, out);
  absl::StrAppend(&out, "RDMA devices:", facts.verbs.devices.empty() ? " none" : "", "\n");
  for (const DeviceReport& device : facts.verbs.devices) PrintDevice(device, out);
  for (const fabric::verbs::NodeChoice& choice : facts.verbs.choices) {
    absl::StrAppend(&out, "  reactors of NUMA node ", choice.node, " use ",
                    choice.device.empty() ? "none: " : "", choice.why, "\n");
  }
}

void PrintMemory(const MachineFacts& facts, std::string& out) {
  const MemoryFacts& memory = facts.memory;
  absl::StrAppend(&out, "Memory: pools of at most ", Size(memory.pool_bytes_max), ", on ",
                  !memory.pools_huge.has_value() ? "no"
                  : *memory.pools_huge           ? "huge"
                                                 : "small",
                  " pages\n  transparent huge pages: ", OrUnknown(memory.transparent),
                  ", of shared memory: ", OrUnknown(memory.transparent_shared), "\n");
  for (const MemoryFacts::Reserved& reserved : memory.reserved) {
    absl::StrAppend(&out, "  reserved huge pages of ", Size(reserved.page_bytes), ": ",
                    reserved.total, ", free ", reserved.free, "\n");
  }
  const LockLimits& lock = memory.lock;
  absl::StrAppend(&out, "  locked memory: limit ", Size(lock.bytes_max), ", hard limit ",
                  Size(lock.bytes_max_hard),
                  lock.exempt ? ", which do not bind (CAP_IPC_LOCK)" : "", "\n");
}

std::string Tried(const fabric::verbs::GpuReport& gpu) {
  if (!gpu.trial.ran) return absl::StrCat("not tried: ", gpu.trial.text);
  return absl::StrCat("over ", gpu.tried, " ",
                      gpu.trial.works ? "works" : absl::StrCat("FAILS: ", gpu.trial.text));
}

void PrintGpus(const GpuFacts& gpus, std::string& out) {
  absl::StrAppend(
      &out, "GPUs:", gpus.devices.empty() ? " none" : "",
      gpus.devices.empty() && !gpus.none.empty() ? absl::StrCat(" (", gpus.none, ")") : "", "\n");
  for (const fabric::verbs::GpuReport& gpu : gpus.devices) {
    const memory::NicFacts& nic = gpu.nic;
    absl::StrAppend(&out, "  ", gpu.name, ", ", nic.pci.empty() ? "PCI address unknown" : nic.pci,
                    ", dma-buf ", nic.dma_buf ? "yes" : "no", ", what NICs write is ",
                    !nic.flushes   ? "seen in order"
                    : nic.writable ? "seen after a flush"
                                   : "NOT seen in order, and cannot be flushed",
                    "\n    BAR 1 ", nic.window_bytes == 0 ? "unknown" : Size(nic.window_bytes),
                    ", registered with NICs at most ", Size(gpu.registered_bytes_max),
                    "; nearest NIC ",
                    gpu.nearest.empty()
                        ? std::string("unknown")
                        : absl::StrCat(gpu.nearest, " (", topology::PciNearness(gpu.distance), ")"),
                    "\n    READ of a pattern into its memory and out of it: ", Tried(gpu), "\n");
  }
}

void PrintDma(const MachineFacts& facts, std::string& out) {
  absl::StrAppend(
      &out, "NVIDIA driver: ",
      !facts.gpu.driver ? std::string("not loaded") : OrUnknown(facts.gpu.driver_version),
      ", nvidia_peermem: ", facts.gpu.peermem ? "loaded" : "not loaded", "\nIOMMU: ",
      facts.iommu.units.empty() ? std::string("none") : absl::StrJoin(facts.iommu.units, " "));
  for (const auto& [mode, groups] : facts.iommu.modes) {
    absl::StrAppend(&out, ", ", groups, " groups ", mode);
  }
  absl::StrAppend(&out, facts.iommu.words.empty() ? "" : "; kernel command line: ",
                  absl::StrJoin(facts.iommu.words, " "), "\n");
}

}  // namespace

std::string DoctorText(const MachineFacts& facts, absl::Span<const Finding> findings) {
  std::string out;
  PrintNodes(facts, out);
  PrintVerbs(facts, out);
  absl::StrAppend(&out, "Other transports:\n");
  for (const TransportFacts& transport : facts.transports) {
    absl::StrAppend(&out, "  ", transport.name, ": ", transport.usable ? "works" : "FAILS", " (",
                    transport.text, ")\n");
  }
  PrintMemory(facts, out);
  PrintGpus(facts.gpu, out);
  PrintDma(facts, out);
  absl::StrAppend(&out, "\n", AnyProblem(findings) ? "" : "No problem.\n");
  for (const Finding& finding : findings) {
    absl::StrAppend(&out, finding.problem ? "PROBLEM " : "Note ", finding.area, ": ", finding.text,
                    "\n", finding.cure.empty() ? "" : "    ", finding.cure,
                    finding.cure.empty() ? "" : "\n");
  }
  return out;
}

}  // namespace verbena::tool
