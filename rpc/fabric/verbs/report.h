#pragma once
// What verbs finds on this machine, as plain values for whoever prints it. Includes no verbs
// header.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rpc/fabric/verbs/device_limits.h"
#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/port_choice.h"
#include "rpc/fabric/verbs/port_filter.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "rpc/fabric/verbs/why_none.h"

namespace verbena::fabric::verbs {

// Two queue pairs of this process that talked over the port.
struct PortTrial {
  bool ran = false;
  bool send = false;    // a pattern arrived by SEND
  bool read = false;    // and by READ
  std::string error;    // of the first that failed
  bool window = false;  // a memory window was READ, taken back, and gave nothing after that
  std::string window_error;
  bool bounds_enforced = false;  // a READ past the window's end was refused
};

struct PortReport {
  PortFacts facts;       // with what was chosen of its tables
  std::string unusable;  // why no link can use it; empty: one can
  std::string netdev;    // RoCE: its network interface
  uint32_t mtu = 0;
  std::vector<GidRow> gids;
  std::vector<uint16_t> pkeys;
  // What the device counted, of all processes, by the kernel's names; and what of it is trouble.
  std::map<std::string, uint64_t> counters;
  PortTrouble trouble;
  PortTrial trial;  // of a usable port that the filter names
};

struct DeviceReport {
  std::string name;
  int numa_node = -1;
  bool soft = false;  // no hardware of its own: soft-RoCE
  std::string firmware;
  std::string iommu;  // how the kernel translates its DMA: "identity", "DMA-FQ"; empty = not at all
  DeviceLimits limits;
  std::vector<PortReport> ports;
};

// What a reactor of one NUMA node would use.
struct NodeChoice {
  int node = 0;
  std::string device;  // empty: none
  int port = 0;
  int distance = 0;  // to the device; 0 = unknown
  std::string why;
};

struct VerbsReport {
  PortFilter filter;
  std::vector<Setting> settings;
  std::vector<Missing> missing;
  bool kernel_has_devices = false;
  std::vector<DeviceReport> devices;
  std::vector<NodeChoice> choices;
};

// Opens the devices, if need be, and tries their ports: some ms each, seconds where one does not
// answer. Any thread that may wait.
VerbsReport ReportDevices(const Settings& settings);

}  // namespace verbena::fabric::verbs
