#pragma once
// Locked memory: what registration pins is bounded by RLIMIT_MEMLOCK, per process, unless the
// process has CAP_IPC_LOCK. Says before registering, or after a failure, whether that limit is in
// the way, and what to set. Includes no verbs header.
//
//   const std::string problem = LockProblem(pool_bytes, CurrentLockLimits());
//   if (!problem.empty()) VERBENA_LOG(kWarning, problem);
#include <cstdint>
#include <string>

#include "absl/strings/string_view.h"

namespace verbena::fabric::verbs {

struct LockLimits {
  static constexpr uint64_t kUnlimited = UINT64_MAX;
  uint64_t bytes_max = kUnlimited;       // RLIMIT_MEMLOCK: what counts now
  uint64_t bytes_max_hard = kUnlimited;  // as far as the process may raise it itself
  uint64_t pinned_bytes = 0;             // by registrations of this process so far
  // CAP_IPC_LOCK of the machine itself; that of a container with users of its own does not count.
  bool exempt = false;
};

// Of this process. Any thread; reads three files.
LockLimits CurrentLockLimits();
// The same, from the text of /proc/self/status and /proc/self/uid_map.
void ReadLockFacts(absl::string_view status, absl::string_view uid_map, LockLimits& limits);

// Empty: `bytes` more can be pinned. Else what is needed and what is left.
std::string LockShortage(uint64_t bytes, const LockLimits& limits);
// How to raise the limit so that `bytes` more fit, for people.
std::string LockCure(uint64_t bytes, const LockLimits& limits);
// Both as one text; empty when there is no shortage.
std::string LockProblem(uint64_t bytes, const LockLimits& limits);

}  // namespace verbena::fabric::verbs
