#pragma once
// Settings of the process's reactors. All optional; call InitRuntime before the first Channel or
// Server.
#include <cstdint>
#include <utility>

#include "absl/status/status.h"
#include "absl/time/time.h"

namespace verbena {

class RuntimeOptions {
 public:
  RuntimeOptions() = default;
  // How long a reactor polls after the last thing that happened before it sleeps. Longer: lower
  // latency after short pauses; shorter: less CPU beside other services. Zero: sleep at once.
  RuntimeOptions& set_spin(absl::Duration spin) & {
    spin_ = spin;
    return *this;
  }
  RuntimeOptions set_spin(absl::Duration spin) && { return std::move(set_spin(spin)); }
  // At most 1,024; 0 = one per NUMA node.
  RuntimeOptions& set_reactors(int count) & {
    reactors_ = count;
    return *this;
  }
  RuntimeOptions set_reactors(int count) && { return std::move(set_reactors(count)); }
  // Pin reactor threads to the CPUs of their node (within what the process may use).
  RuntimeOptions& set_pin(bool pin) & {
    pin_ = pin;
    return *this;
  }
  RuntimeOptions set_pin(bool pin) && { return std::move(set_pin(pin)); }
  // A handler that holds a reactor longer is reported by name. More than zero.
  RuntimeOptions& set_stall_report(absl::Duration after) & {
    stall_report_ = after;
    return *this;
  }
  RuntimeOptions set_stall_report(absl::Duration after) && {
    return std::move(set_stall_report(after));
  }
  // All memory that the library allocates for messages and tensors, of all NUMA nodes together;
  // 0 = what the environment's VERBENA_MEMORY_BYTES_MAX says, else half of the machine's. At least
  // 32 MiB. What needs more ends with RESOURCE_EXHAUSTED naming it; the rest goes on.
  RuntimeOptions& set_memory_bytes_max(uint64_t bytes) & {
    memory_bytes_max_ = bytes;
    return *this;
  }
  RuntimeOptions set_memory_bytes_max(uint64_t bytes) && {
    return std::move(set_memory_bytes_max(bytes));
  }

  absl::Duration spin() const { return spin_; }
  int reactors() const { return reactors_; }
  bool pin() const { return pin_; }
  absl::Duration stall_report() const { return stall_report_; }
  uint64_t memory_bytes_max() const { return memory_bytes_max_; }

 private:
  absl::Duration spin_ = absl::Microseconds(50);
  int reactors_ = 0;
  bool pin_ = true;
  absl::Duration stall_report_ = absl::Milliseconds(50);
  uint64_t memory_bytes_max_ = 0;
};

// FAILED_PRECONDITION when the runtime already runs, or memory was allocated before its limit was
// set; INVALID_ARGUMENT names a value that is out of range. Any thread.
absl::Status InitRuntime(const RuntimeOptions& options);

}  // namespace verbena
