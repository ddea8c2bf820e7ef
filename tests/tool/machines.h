#pragma once
// Machines that nobody has at hand.
#include "rpc/tool/machine_facts.h"

namespace verbena::tool {

// Two NUMA nodes, nothing for RDMA, nothing wrong.
MachineFacts PlainMachine();
// The same with one 400 Gb/s RoCE NIC on each node, at the best of health.
MachineFacts NicMachine();
// The same with a GPU behind the first NIC's switch.
MachineFacts GpuMachine();

}  // namespace verbena::tool
