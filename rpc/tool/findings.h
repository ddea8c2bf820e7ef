#pragma once
// What is wrong with a machine, and what mends it: a pure function over its facts.
#include <string>
#include <vector>

#include "absl/types/span.h"
#include "rpc/tool/machine_facts.h"

namespace verbena::tool {

struct Finding {
  // Something that is there and does not work, or not as it should. Else it works, and could be
  // better; or is not there at all.
  bool problem = false;
  std::string area;  // "verbs", "memlock", "huge pages", "gpu", "iommu", "shm", "tcp"
  std::string text;
  std::string cure;  // a command where there is one; empty: nothing to do
};

// Problems first.
std::vector<Finding> Examine(const MachineFacts& facts);
bool AnyProblem(absl::Span<const Finding> findings);

}  // namespace verbena::tool
