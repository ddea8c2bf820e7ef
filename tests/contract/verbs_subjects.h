#pragma once
// The verbs fabric as a subject of the contract suite, once for each way of taking leases back, and
// of tests of its own.
#include <vector>

#include "rpc/fabric/verbs/verbs_fabric.h"
#include "tests/contract/fabric_contract.h"

namespace verbena::contract {

struct VerbsWay {
  const char* name;
  fabric::Revocation revocation;
  bool srq = true;
  bool bounds_enforced = false;
  const char* server_device = "";
  uint64_t copied_bytes_max = fabric::verbs::kCopiedBytesMax;
};

// Both ends are on the port that a process without wishes gets; or the server's on that device.
Subject VerbsSubject(const VerbsWay& way);
std::vector<Subject> VerbsSubjects();

}  // namespace verbena::contract
