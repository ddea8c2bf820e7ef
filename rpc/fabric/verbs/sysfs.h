#pragma once
// What the kernel's files say of RDMA devices. Each function takes the folder where sysfs is
// mounted, so that tests have their own. Includes no verbs header. Any thread; reads files.
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "rpc/topology/pci.h"

namespace verbena::fabric::verbs {

using topology::kSysfs;

// A file's first line without white space around it; empty where there is none.
std::string ReadLine(const std::string& path);
// Names in a folder, sorted; empty where there is none.
std::vector<std::string> NamesIn(const std::string& folder);

// RDMA devices that the kernel has, whether or not this process may use them.
std::vector<std::string> KernelDevices(absl::string_view root = kSysfs);

// The device as programs open it: "uverbs0", below /dev/infiniband. Empty: they cannot.
std::string UserVerbsOf(absl::string_view device, absl::string_view root = kSysfs);

// The network interface of a RoCE port: the one of its first GID; else the device's parent.
// Empty: none.
std::string NetdevOf(absl::string_view device, int port, absl::string_view root = kSysfs);

// The NUMA node of the device's PCI parent; a soft device has none, and is where its network
// interface is. -1: unknown.
int NumaNodeOf(absl::string_view device, absl::string_view root = kSysfs);

// What the device counts on a port, by the names of sysfs: hw_counters (retransmissions, RNR NAKs
// and the like) and counters. Empty: it counts nothing, or there is no such port. Numbers since the
// driver was loaded, of all processes.
std::map<std::string, uint64_t> HardwareCounters(absl::string_view device, int port,
                                                 absl::string_view root = kSysfs);

// Of these, what tells of trouble: added up, since drivers name it differently and some count the
// parts of one thing apart. No value: the driver counts nothing of the kind.
struct PortTrouble {
  // Senders met a peer without a posted receive, here or there. Credits keep that from happening.
  std::optional<uint64_t> rnr;
  // Sent again, since an acknowledgement did not come in time or said that packets are missing.
  std::optional<uint64_t> retries;
};
PortTrouble TroubleIn(const std::map<std::string, uint64_t>& counters);

}  // namespace verbena::fabric::verbs
