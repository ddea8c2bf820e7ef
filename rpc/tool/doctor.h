#pragma once
// `verbena doctor`: what this machine has for RDMA, what Verbena would choose, what is wrong and
// what mends it.
#include <string>

#include "absl/types/span.h"
#include "rpc/tool/findings.h"
#include "rpc/tool/machine_facts.h"

namespace verbena::tool {

// For people.
std::string DoctorText(const MachineFacts& facts, absl::Span<const Finding> findings);
// For programs: one JSON object. Members are added, never renamed, as long as "format" stays 1.
std::string DoctorJson(const MachineFacts& facts, absl::Span<const Finding> findings);

// Looks, prints to stdout, and returns the exit code: 0 = nothing is wrong with what is there, 1 =
// problems, 2 = the arguments make no sense.
int RunDoctor(absl::Span<const char* const> arguments);

}  // namespace verbena::tool
