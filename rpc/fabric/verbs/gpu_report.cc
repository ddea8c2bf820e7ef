#include "rpc/fabric/verbs/gpu_report.h"

#include "absl/strings/str_cat.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "rpc/fabric/verbs/self_test.h"

namespace verbena::fabric::verbs {
namespace {

// More than any machine has.
constexpr int kGpusMax = 64;

topology::PciPath PathOfNic(absl::string_view nic, absl::string_view root) {
  return topology::PathOf(absl::StrCat(root, "/class/infiniband/", nic, "/device"));
}

bool Usable(const DeviceReport& device) {
  for (const PortReport& port : device.ports) {
    if (port.trial.ran && port.trial.read) return true;
  }
  return false;
}

void TryWith(const std::string& nic, memory::Device& gpu, const PortFilter& filter,
             GpuReport& report) {
  PortFilter only = filter;
  only.device = nic;
  report.tried = nic;
  const absl::StatusOr<PortAddress> port = ChoosePort(-1, only);
  if (!port.ok()) {
    report.trial.text = std::string(port.status().message());
    return;
  }
  const absl::Status status = RunDeviceTest(*port, gpu);
  report.trial.ran = true;
  report.trial.works = status.ok();
  report.trial.text = std::string(status.message());
}

GpuReport ReportGpu(memory::Device& gpu, const VerbsReport& devices, absl::string_view root) {
  GpuReport report;
  report.name = memory::NameOf(gpu.where());
  if (const memory::NicAccess* const access = memory::NicAccessOf(gpu)) {
    report.nic = access->nic_facts();
  }
  report.registered_bytes_max = DeviceBytesOf(gpu).most;
  const topology::PciPath path = topology::PathOfPci(report.nic.pci, root);
  std::vector<topology::PciPath> all, usable;
  std::vector<std::string> usable_names;
  for (const DeviceReport& device : devices.devices) {
    all.push_back(PathOfNic(device.name, root));
    if (!Usable(device)) continue;
    usable.push_back(all.back());
    usable_names.push_back(device.name);
  }
  const int nearest = topology::NearestPci(path, all);
  if (nearest >= 0) {
    report.nearest = devices.devices[static_cast<size_t>(nearest)].name;
    report.distance = topology::PciDistance(path, all[static_cast<size_t>(nearest)]);
  }
  if (usable.empty()) {
    report.trial.text = devices.devices.empty() ? "there is no RDMA device"
                                                : "no RDMA device has a port that works";
    return report;
  }
  const int best = topology::NearestPci(path, usable);
  TryWith(usable_names[static_cast<size_t>(best < 0 ? 0 : best)], gpu, devices.filter, report);
  return report;
}

}  // namespace

std::vector<memory::Device*> KnownGpus() {
  std::vector<memory::Device*> gpus;
  for (int i = 0; i < kGpusMax; ++i) {
    const absl::StatusOr<memory::Device*> gpu = memory::FindDevice(::verbena::Device::Cuda(i));
    if (gpu.ok()) gpus.push_back(*gpu);
  }
  return gpus;
}

int DistanceToGpus(absl::string_view nic, absl::string_view root) {
  std::vector<topology::PciPath> gpus;
  for (memory::Device* const gpu : KnownGpus()) {
    const memory::NicAccess* const access = memory::NicAccessOf(*gpu);
    if (access != nullptr) gpus.push_back(topology::PathOfPci(access->nic_facts().pci, root));
  }
  if (gpus.empty()) return -1;
  const topology::PciPath path = PathOfNic(nic, root);
  const int nearest = topology::NearestPci(path, gpus);
  return nearest < 0 ? -1 : topology::PciDistance(path, gpus[static_cast<size_t>(nearest)]);
}

std::vector<GpuReport> ReportGpus(absl::Span<memory::Device* const> gpus,
                                  const VerbsReport& devices, absl::string_view root) {
  std::vector<GpuReport> reports;
  for (memory::Device* const gpu : gpus) reports.push_back(ReportGpu(*gpu, devices, root));
  return reports;
}

}  // namespace verbena::fabric::verbs
