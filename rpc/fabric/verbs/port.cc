// ChoosePort: facts of every port, the choice, and the address that follows from it.
#include <mutex>

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/port_choice.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "rpc/topology/topology.h"

namespace verbena::fabric::verbs {

absl::StatusOr<PortAddress> ChoosePort(int numa_node, const PortFilter& filter) {
  std::vector<PortRecord> records;
  for (Device* device : Device::All()) {
    for (PortRecord& record : ReadPorts(*device, filter)) records.push_back(std::move(record));
  }
  const std::string missing = Device::WhyNone();
  if (records.empty() && filter.device.empty()) return absl::NotFoundError(missing);
  std::vector<PortFacts> facts;
  for (const PortRecord& record : records) facts.push_back(record.facts);
  const topology::Topology& machine = topology::Topology::Get();
  PortChoice choice = PickPort(facts, numa_node, filter,
                               [&machine](int from, int to) { return machine.Distance(from, to); });
  if (choice.index < 0) {
    if (!missing.empty()) absl::StrAppend(&choice.why, "; ", missing);
    return choice.named ? absl::UnavailableError(choice.why)
                        : absl::FailedPreconditionError(choice.why);
  }
  if (!choice.unmatched.empty()) {
    static std::once_flag once;
    std::call_once(once, [&choice] { VERBENA_LOG(kWarning, "verbs: ", choice.unmatched); });
  }
  VERBENA_LOG(kInfo, "verbs port for NUMA node ", numa_node, ": ", choice.why);
  return AddressOf(records[static_cast<size_t>(choice.index)], choice.why);
}

}  // namespace verbena::fabric::verbs
