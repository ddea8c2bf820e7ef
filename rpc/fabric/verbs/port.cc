// ChoosePort: facts of every port, the choice, and the address that follows from it.
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/port_choice.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "rpc/topology/topology.h"

namespace verbena::fabric::verbs {
namespace {

PortAddress AddressOf(const PortRecord& record, std::string why) {
  const PortFacts& facts = record.facts;
  const GidRow& row = record.gids[static_cast<size_t>(facts.gid.row)];
  PortAddress address;
  address.device = record.device;
  address.port = facts.port;
  address.ethernet = facts.ethernet;
  address.mtu_active = record.attributes.active_mtu;
  address.lid = facts.lid;
  address.grh = facts.ethernet || (record.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  address.gid_index = row.index;
  address.roce_version = row.kind == GidKind::kRoceV2   ? uint8_t{2}
                         : row.kind == GidKind::kRoceV1 ? uint8_t{1}
                                                        : uint8_t{0};
  std::memcpy(address.gid.raw, row.gid.data(), row.gid.size());
  address.gid_text = GidText(row.gid);
  address.pkey = facts.pkey.pkey;
  address.pkey_index = static_cast<uint16_t>(facts.pkey.index);
  address.speed_mbps = facts.speed_mbps;
  address.why = std::move(why);
  return address;
}

}  // namespace

absl::StatusOr<PortAddress> ChoosePort(int numa_node, const PortFilter& filter) {
  std::vector<PortRecord> records;
  for (Device* device : Device::All()) {
    for (PortRecord& record : ReadPorts(*device, filter)) records.push_back(std::move(record));
  }
  const std::string missing = Device::WhyNone();
  if (records.empty()) return absl::NotFoundError(missing);
  std::vector<PortFacts> facts;
  for (const PortRecord& record : records) facts.push_back(record.facts);
  const topology::Topology& machine = topology::Topology::Get();
  PortChoice choice = PickPort(facts, numa_node, filter,
                               [&machine](int from, int to) { return machine.Distance(from, to); });
  if (choice.index < 0) {
    if (!missing.empty()) absl::StrAppend(&choice.why, "; ", missing);
    return choice.named ? absl::UnavailableError(choice.why) : absl::NotFoundError(choice.why);
  }
  VERBENA_LOG(kInfo, "verbs port for NUMA node ", numa_node, ": ", choice.why);
  return AddressOf(records[static_cast<size_t>(choice.index)], choice.why);
}

}  // namespace verbena::fabric::verbs
