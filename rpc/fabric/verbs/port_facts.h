#pragma once
// What a device says of its ports now: the facts that PickPort chooses by, and the tables behind
// them.
#include <infiniband/verbs.h>

#include <string>
#include <vector>

#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/port_choice.h"

namespace verbena::fabric::verbs {

struct PortRecord {
  Device* device = nullptr;
  ibv_port_attr attributes{};
  std::vector<GidRow> gids;
  std::vector<uint16_t> pkeys;
  PortFacts facts;  // with the choices of GID and pkey by `filter`
};

// A port that cannot be asked is not active, and its state says why. Reads files and asks the
// kernel: some ms. Any thread.
std::vector<PortRecord> ReadPorts(Device& device, const PortFilter& filter);

// Of a usable port.
PortAddress AddressOf(const PortRecord& record, std::string why);

// Of an active_width and active_speed; 0 = unknown.
uint32_t MbpsOf(uint8_t width, uint8_t speed);

}  // namespace verbena::fabric::verbs
