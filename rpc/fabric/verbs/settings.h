#pragma once
// verbs::Settings: what the environment demands of verbs; nothing else reads VERBENA_VERBS_*.
// Includes no verbs header.
//
// No demand is passed over: where a value makes no sense, this process has no verbs, and says why
// (Check). Of a name that is none of ours it is only said.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/verbs/port_filter.h"

namespace verbena::fabric::verbs {

// One variable. An empty value is as good as none.
struct Setting {
  std::string name;
  std::string value;    // empty: not set
  std::string problem;  // what is wrong, with name and value; empty: nothing
  bool known = true;    // false: this version reads no variable of that name
};

struct Settings {
  PortFilter filter;
  std::optional<Revocation> revocation;  // else what the device can
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
  bool srq = true;
  bool batch = true;
  bool gpu_direct = true;
  uint64_t gpu_direct_bytes_max = 0;  // 0: by what the GPU tells (device_memory.h)
  std::optional<uint64_t> copied_bytes_max;
  // All that there are, set or not; then those that are set and unknown.
  std::vector<Setting> all;

  // Any thread, as long as none changes the environment.
  static Settings FromEnvironment();
  // INVALID_ARGUMENT: some values make no sense; the text has them all, and what each may be.
  absl::Status Check() const;
};

}  // namespace verbena::fabric::verbs
