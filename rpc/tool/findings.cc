#include "rpc/tool/findings.h"

#include <algorithm>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace verbena::tool {
namespace {

using fabric::verbs::DeviceReport;
using fabric::verbs::PortReport;

// What a process with RDMA pins soon: receive and send buffers, the first slabs of its pools.
constexpr uint64_t kLockedBytesLeast = 1 << 30;
// Less READs under way than this leave a fast link idle for most of a round trip.
constexpr uint32_t kReadDepthLeast = 4;

using Findings = std::vector<Finding>;

void Problem(Findings& findings, std::string area, std::string text, std::string cure) {
  findings.push_back({true, std::move(area), std::move(text), std::move(cure)});
}
void Note(Findings& findings, std::string area, std::string text, std::string cure) {
  findings.push_back({false, std::move(area), std::move(text), std::move(cure)});
}

std::string NameOf(const PortReport& port) {
  return absl::StrCat(port.facts.device, ":", static_cast<int>(port.facts.port));
}

int ChosenGid(const PortReport& port) {
  const auto row = static_cast<size_t>(port.facts.gid.row);
  return row < port.gids.size() ? port.gids[row].index : 0;
}

std::string PortCure(const PortReport& port, const fabric::verbs::PortFilter& filter) {
  const std::string netdev = port.netdev.empty() ? "DEV" : port.netdev;
  if (port.facts.dead) return "restart the process; if it comes again, see dmesg";
  if (!port.facts.active && port.facts.ethernet) {
    return absl::StrCat("ip link set ", netdev, " up; else look at cable and switch (ethtool ",
                        netdev, ")");
  }
  if (!port.facts.active || (!port.facts.ethernet && port.facts.lid == 0)) {
    return "ibstat; cable; a subnet manager must run somewhere: systemctl start opensm";
  }
  if (port.facts.gid.row < 0) {
    if (filter.gid_index >= 0) return "unset VERBENA_VERBS_GID_INDEX";
    return absl::StrCat("ip link set ", netdev, " up; ip address add ADDRESS/BITS dev ", netdev);
  }
  return filter.pkey >= 0 ? "unset VERBENA_VERBS_PKEY"
                          : "give the port a partition in the subnet manager's configuration";
}

void ExamineDevices(const MachineFacts& facts, Findings& findings) {
  const fabric::verbs::VerbsReport& verbs = facts.verbs;
  for (const fabric::verbs::Missing& missing : verbs.missing) {
    // No device at all is no fault.
    const bool problem = verbs.kernel_has_devices || !verbs.devices.empty();
    findings.push_back({problem, "verbs", missing.what, missing.cure});
  }
  for (const DeviceReport& device : verbs.devices) {
    if (device.soft) {
      Note(findings, "verbs",
           absl::StrCat(device.name, " is soft-RoCE, which is for tests: the CPU does its work"),
           "");
    }
    if (device.limits.srq_max == 0) {
      Note(findings, "verbs",
           absl::StrCat(device.name,
                        " has no shared receive queues: receive memory grows with connections"),
           "");
    }
    if (!device.limits.windows_2b) {
      Note(findings, "verbs",
           absl::StrCat(device.name,
                        " has no memory windows of type 2B: each lease costs a registration"),
           "");
    }
    const uint32_t depth =
        std::min(device.limits.read_depth_initiator, device.limits.read_depth_responder);
    if (depth < kReadDepthLeast) {
      Note(findings, "verbs",
           absl::StrCat(device.name, " has at most ", depth,
                        " READs under way per queue pair: large payloads will not fill the link"),
           "look for newer firmware");
    }
  }
}

void ExamineSettings(const MachineFacts& facts, Findings& findings) {
  for (const fabric::verbs::Setting& setting : facts.verbs.settings) {
    if (setting.problem.empty()) continue;
    Problem(findings, "verbs",
            absl::StrCat(setting.problem, setting.known ? ", and verbs is not used" : ""),
            absl::StrCat("unset ", setting.name));
  }
  std::vector<fabric::verbs::PortFacts> ports;
  for (const DeviceReport& device : facts.verbs.devices) {
    for (const PortReport& port : device.ports) ports.push_back(port.facts);
  }
  const std::string unmatched = fabric::verbs::WhyUnmatched(facts.verbs.filter, ports);
  if (!unmatched.empty()) Problem(findings, "verbs", unmatched, "unset VERBENA_VERBS_DEVICE");
}

void ExaminePorts(const MachineFacts& facts, Findings& findings) {
  bool any_usable = false;
  for (const DeviceReport& device : facts.verbs.devices) {
    for (const PortReport& port : device.ports) {
      any_usable |= Names(facts.verbs.filter, port.facts) && port.unusable.empty();
    }
  }
  for (const DeviceReport& device : facts.verbs.devices) {
    for (const PortReport& port : device.ports) {
      if (port.unusable.empty() || !Names(facts.verbs.filter, port.facts)) continue;
      // A second port without a cable is how many machines are.
      findings.push_back({!any_usable, "verbs", absl::StrCat(NameOf(port), ": ", port.unusable),
                          PortCure(port, facts.verbs.filter)});
    }
  }
  for (const fabric::verbs::NodeChoice& choice : facts.verbs.choices) {
    if (choice.device.empty() || facts.nodes.size() < 2 || choice.distance <= 10) continue;
    Note(findings, "numa",
         absl::StrCat("reactors of node ", choice.node, " use ", choice.device,
                      ", which is at distance ", choice.distance),
         absl::StrCat("where it matters, run the process on the NIC's node: numactl -N"));
  }
}

void ExamineTrial(const DeviceReport& device, const PortReport& port, Findings& findings) {
  const fabric::verbs::PortTrial& trial = port.trial;
  if (!trial.ran) return;
  if (!trial.send || !trial.read) {
    Problem(findings, "verbs",
            absl::StrCat(NameOf(port), ": a pattern did not come back by ",
                         trial.send ? "READ" : "SEND", ": ", trial.error),
            absl::StrCat("compare: ibv_rc_pingpong -d ", port.facts.device, " -i ",
                         static_cast<int>(port.facts.port), " -g ", ChosenGid(port),
                         "; a firewall must let UDP port 4791 pass"));
    return;
  }
  if (device.limits.windows_2b && !trial.window) {
    Note(findings, "verbs",
         absl::StrCat(
             NameOf(port),
             ": memory windows do not work, each lease costs a registration: ", trial.window_error),
         "look for newer firmware");
  }
  if (trial.window && !trial.bounds_enforced) {
    Note(
        findings, "verbs",
        absl::StrCat(NameOf(port), ": a peer can READ past the end of what it was lent"),
        "VERBENA_VERBS_REVOCATION=lease-mr, where peers are not trusted with this process's pools");
  }
}

void ExamineTrials(const MachineFacts& facts, Findings& findings) {
  for (const DeviceReport& device : facts.verbs.devices) {
    for (const PortReport& port : device.ports) ExamineTrial(device, port, findings);
  }
}

void ExamineMemory(const MachineFacts& facts, Findings& findings) {
  const MemoryFacts& memory = facts.memory;
  if (!facts.verbs.devices.empty()) {
    const uint64_t least = std::min(kLockedBytesLeast, memory.pool_bytes_max);
    const std::string short_now = LockShortage(least, memory.lock);
    const std::string short_later = LockShortage(memory.pool_bytes_max, memory.lock);
    const std::string cure = LockCure(memory.pool_bytes_max, memory.lock);
    if (!short_now.empty()) {
      Problem(findings, "memlock", short_now, cure);
    } else if (!short_later.empty()) {
      Note(findings, "memlock",
           absl::StrCat("enough to begin with; when the pools have grown: ", short_later), cure);
    }
  }
  if (!memory.pools_huge.has_value()) {
    Problem(findings, "memory", "no shared memory could be made (memfd_create)",
            "dmesg; in a container look at its memory limit and seccomp profile");
  } else if (!*memory.pools_huge) {
    Note(findings, "huge pages",
         "the pools lie on small pages: faulting them in and registering them takes several times "
         "as long",
         "echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled (or a kernel from 6.1 "
         "on)");
  }
}

void ExamineDma(const MachineFacts& facts, Findings& findings) {
  for (const DeviceReport& device : facts.verbs.devices) {
    if (absl::StartsWith(device.iommu, "DMA")) {
      Note(findings, "iommu",
           absl::StrCat(device.name, "'s DMA is translated (", device.iommu,
                        "): registering and PCIe traffic between NIC and GPU cost more"),
           "boot with iommu=pt, unless this machine lends devices to virtual machines");
    }
    if (!facts.gpu.driver || device.soft || facts.gpu.peermem || device.limits.dmabuf) continue;
    Problem(findings, "gpu",
            absl::StrCat(device.name, " cannot reach GPU memory: ",
                         device.limits.dmabuf_unknown ? "it is unknown whether it takes dma-buf"
                                                      : "it takes no dma-buf",
                         ", and nvidia_peermem is not loaded"),
            "modprobe nvidia_peermem (comes with NVIDIA's driver; needs the NIC's driver first)");
  }
}

// Less of a GPU than this is registered soon.
constexpr uint64_t kWindowBytesLeast = uint64_t{1} << 30;

bool IsSoft(const MachineFacts& facts, absl::string_view name) {
  for (const DeviceReport& device : facts.verbs.devices) {
    if (device.name == name) return device.soft;
  }
  return false;
}

void ExamineGpu(const MachineFacts& facts, const fabric::verbs::GpuReport& gpu,
                Findings& findings) {
  if (gpu.trial.ran && !gpu.trial.works && gpu.nic.writable && !IsSoft(facts, gpu.tried)) {
    const bool no_way = !gpu.nic.dma_buf && !facts.gpu.peermem;
    Problem(findings, "gpu",
            absl::StrCat(gpu.tried, " does not reach memory of ", gpu.name,
                         ", which goes by way of the host's: ", gpu.trial.text),
            no_way ? "modprobe nvidia_peermem; or install NVIDIA's open kernel modules, which "
                     "export dma-bufs"
                   : "dmesg | grep -i -e nvidia -e mlx5; in a virtual machine ask for PCI peer to "
                     "peer (ACS, IOMMU)");
  }
  if (!gpu.nic.writable) {
    Note(findings, "gpu",
         absl::StrCat(gpu.name,
                      " does not see what NICs write in order, and this driver cannot "
                      "flush it: what is fetched into it goes by way of the host's"),
         "a newer NVIDIA driver");
  }
  if (gpu.nic.window_bytes != 0 && gpu.nic.window_bytes < kWindowBytesLeast) {
    Note(findings, "gpu",
         absl::StrCat(gpu.name, " shows NICs only ", gpu.nic.window_bytes >> 20,
                      " MiB of its memory at a time (BAR 1)"),
         "switch Above 4G Decoding and Resizable BAR on in the firmware's setup");
  }
  if (gpu.distance >= topology::kPciProcessors) {
    Note(findings, "gpu",
         absl::StrCat(gpu.name, "'s nearest NIC, ", gpu.nearest, ", is ",
                      topology::PciNearness(gpu.distance)),
         "");
  }
}

// By what LoadDriver says.
std::string DriverCure(absl::string_view why) {
  if (absl::StrContains(why, "toolkit's stub")) {
    return "take the toolkit's lib64/stubs out of LD_LIBRARY_PATH and /etc/ld.so.conf.d: it is for "
           "the linker alone";
  }
  if (absl::StrContains(why, "does not load")) {
    return "look which file it is (LD_LIBRARY_PATH, ldconfig -p | grep libcuda.so.1), and install "
           "NVIDIA's driver anew; in a container, start it with the host's (--gpus all)";
  }
  return "nvidia-smi says what is wrong; libcuda.so.1 must be of the version that the kernel has "
         "loaded (/proc/driver/nvidia/version), of CUDA 11.4 or later";
}

void ExamineDriver(const GpuFacts& gpu, Findings& findings) {
  if (!gpu.unusable) return;
  Problem(findings, "gpu", absl::StrCat("the GPU driver cannot be used: ", gpu.none),
          DriverCure(gpu.none));
}

void ExamineTransports(const MachineFacts& facts, Findings& findings) {
  for (const TransportFacts& transport : facts.transports) {
    if (transport.usable) continue;
    Problem(findings, transport.name, absl::StrCat("cannot be used: ", transport.text),
            transport.name == "tcp" ? "ip link set lo up"
                                    : "look at the memory limit and seccomp profile of the "
                                      "container, and ulimit -n");
  }
}

}  // namespace

std::vector<Finding> Examine(const MachineFacts& facts) {
  Findings findings;
  ExamineDevices(facts, findings);
  ExamineSettings(facts, findings);
  ExaminePorts(facts, findings);
  ExamineTrials(facts, findings);
  ExamineMemory(facts, findings);
  ExamineDma(facts, findings);
  for (const fabric::verbs::GpuReport& gpu : facts.gpu.devices) ExamineGpu(facts, gpu, findings);
  ExamineDriver(facts.gpu, findings);
  ExamineTransports(facts, findings);
  std::stable_partition(findings.begin(), findings.end(),
                        [](const Finding& finding) { return finding.problem; });
  return findings;
}

bool AnyProblem(absl::Span<const Finding> findings) {
  return std::any_of(findings.begin(), findings.end(),
                     [](const Finding& finding) { return finding.problem; });
}

}  // namespace verbena::tool
