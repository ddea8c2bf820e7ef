#pragma once
// How a queue pair's packets reach its peer: a pure function over what both ends say of themselves.
//
// RoCE goes by GID, always, and v2 between two IPv4 addresses or two IPv6 ones. InfiniBand goes by
// LID, which means something in its own subnet only, the first eight bytes of a GID: ports of
// different subnets are not paired, since the LID of the router between them is known to the subnet
// manager alone. A GRH goes along where either port demands it. (A fabric whose subnet manager gave
// no prefix has fe80::, so two of those look like one; what no packet gets through is found out
// when the link is proved.)
#include <infiniband/verbs.h>

#include <cstdint>

#include "absl/status/statusor.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/offer.h"

namespace verbena::fabric::verbs {

struct Path {
  ibv_ah_attr address{};
  ibv_mtu mtu = IBV_MTU_256;  // the lesser of both ports'
};

// What an end says of its port: GID, LID, MTU, link layer, whether it demands a GRH.
void DescribePort(const PortAddress& port, QueuePairEnd& end);

// INVALID_ARGUMENT: the peer's port cannot be reached from ours: another link layer, RoCE version,
// kind of address or subnet, or a LID that is no port's. Names both values.
absl::StatusOr<Path> PathTo(const PortAddress& port, const QueuePairEnd& peer,
                            uint8_t service_level, uint8_t traffic_class);

}  // namespace verbena::fabric::verbs
