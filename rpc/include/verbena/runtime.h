#pragma once
// Settings of the process's reactors. All optional; call InitRuntime before the first Channel or
// Server.
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
  // 0 = one per NUMA node.
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
  // A handler that holds a reactor longer is reported by name.
  RuntimeOptions& set_stall_report(absl::Duration after) & {
    stall_report_ = after;
    return *this;
  }
  RuntimeOptions set_stall_report(absl::Duration after) && {
    return std::move(set_stall_report(after));
  }

  absl::Duration spin() const { return spin_; }
  int reactors() const { return reactors_; }
  bool pin() const { return pin_; }
  absl::Duration stall_report() const { return stall_report_; }

 private:
  absl::Duration spin_ = absl::Microseconds(50);
  int reactors_ = 0;
  bool pin_ = true;
  absl::Duration stall_report_ = absl::Milliseconds(50);
};

// FAILED_PRECONDITION when the runtime already runs. Any thread.
absl::Status InitRuntime(const RuntimeOptions& options);

}  // namespace verbena
