#include "rpc/fabric/verbs/report.h"

#include "absl/strings/str_cat.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "rpc/fabric/verbs/self_test.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "rpc/topology/topology.h"

namespace verbena::fabric::verbs {
namespace {

PortTrial Try(const PortRecord& record) {
  PortTrial trial;
  trial.ran = true;
  const SelfTest tested = RunSelfTest(AddressOf(record, ""));
  trial.send = tested.send.ok();
  trial.read = tested.read.ok();
  for (const absl::Status* status : {&tested.send, &tested.read}) {
    if (trial.error.empty()) trial.error = std::string(status->message());
  }
  trial.window = tested.window.ok();
  trial.window_error = std::string(tested.window.message());
  trial.bounds_enforced = tested.bounds_enforced;
  return trial;
}

PortReport ReportPort(const PortRecord& record) {
  PortReport report;
  report.facts = record.facts;
  report.unusable = WhyUnusable(record.facts);
  if (record.facts.ethernet) report.netdev = NetdevOf(record.facts.device, record.facts.port);
  report.mtu = record.attributes.active_mtu == 0 ? 0 : 128u << record.attributes.active_mtu;
  report.gids = record.gids;
  report.pkeys = record.pkeys;
  report.counters = HardwareCounters(record.facts.device, record.facts.port);
  report.trouble = TroubleIn(report.counters);
  return report;
}

DeviceReport ReportDevice(Device& device, const PortFilter& filter) {
  DeviceReport report;
  report.name = std::string(device.name());
  report.numa_node = device.numa_node();
  report.limits = device.limits();
  const std::string folder = absl::StrCat(kSysfs, "/class/infiniband/", device.name());
  report.soft = NamesIn(folder + "/device").empty();
  report.firmware = ReadLine(folder + "/fw_ver");
  report.iommu = ReadLine(folder + "/device/iommu_group/type");
  for (const PortRecord& record : ReadPorts(device, filter)) {
    report.ports.push_back(ReportPort(record));
    PortReport& port = report.ports.back();
    if (port.unusable.empty() && Names(filter, port.facts)) port.trial = Try(record);
  }
  return report;
}

NodeChoice ChoiceFor(const topology::Topology& machine, int node, const Settings& settings) {
  NodeChoice choice;
  choice.node = node;
  const absl::Status sense = settings.Check();
  const absl::StatusOr<PortAddress> port =
      sense.ok() ? ChoosePort(node, settings.filter) : absl::StatusOr<PortAddress>(sense);
  if (!port.ok()) {
    choice.why = std::string(port.status().message());
    return choice;
  }
  choice.device = std::string(port->device->name());
  choice.port = port->port;
  if (port->device->numa_node() >= 0) {
    choice.distance = machine.Distance(node, port->device->numa_node());
  }
  choice.why = port->why;
  return choice;
}

}  // namespace

VerbsReport ReportDevices(const Settings& settings) {
  VerbsReport report;
  report.filter = settings.filter;
  report.settings = settings.all;
  for (Device* device : Device::All()) {
    report.devices.push_back(ReportDevice(*device, settings.filter));
  }
  report.missing = MissingDevices(Device::Seen());
  report.kernel_has_devices = !Device::Seen().kernel.empty();
  if (report.devices.empty()) return report;
  const topology::Topology& machine = topology::Topology::Get();
  for (const topology::Node& node : machine.nodes()) {
    report.choices.push_back(ChoiceFor(machine, node.index, settings));
  }
  return report;
}

}  // namespace verbena::fabric::verbs
