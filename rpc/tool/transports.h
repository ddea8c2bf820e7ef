#pragma once
// Tries what this process could talk over, by talking to itself.
#include <vector>

#include "rpc/tool/machine_facts.h"

namespace verbena::tool {

// Shared memory and TCP.
std::vector<TransportFacts> TryTransports();

}  // namespace verbena::tool
