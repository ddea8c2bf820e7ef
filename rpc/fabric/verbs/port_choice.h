#pragma once
// Which port a reactor uses: a pure function over what is known of each. Includes no verbs header.
#include <cstdint>
#include <string>

#include "absl/functional/function_ref.h"
#include "absl/types/span.h"
#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/port_filter.h"

namespace verbena::fabric::verbs {

struct PortFacts {
  std::string device;
  uint8_t port = 1;
  bool dead = false;  // the device had a fatal event
  bool active = false;
  std::string state;  // "PORT_DOWN", as the driver says
  bool ethernet = false;
  uint16_t lid = 0;
  int numa_node = -1;
  uint32_t speed_mbps = 0;
  int gpu_distance = -1;  // to the nearest GPU in use, as topology/pci.h; -1: unknown, or none
  GidChoice gid;
  PkeyChoice pkey;
};

struct PortChoice {
  int index = -1;         // in `ports`; -1 = none
  bool named = false;     // the filter names at least one of `ports`
  std::string unmatched;  // as WhyUnmatched
  std::string why;
};

// Link up, then nearest to `numa_node` (-1: any), then to a GPU (behind one switch, behind one host
// bridge, farther), then fastest, then by name and number. A port of unknown node counts as twice
// the local distance. `distance`: of two NUMA nodes, 10 = local.
PortChoice PickPort(absl::Span<const PortFacts> ports, int numa_node, const PortFilter& filter,
                    absl::FunctionRef<int(int from, int to)> distance);

// Whether `filter.device` names this port.
bool Names(const PortFilter& filter, const PortFacts& port);
// Of the names in `filter.device` those that no port has, and which ports there are; empty: each
// names one.
std::string WhyUnmatched(const PortFilter& filter, absl::Span<const PortFacts> ports);
// Why it cannot be used now, with what to do; empty: it can.
std::string WhyUnusable(const PortFacts& port);

}  // namespace verbena::fabric::verbs
