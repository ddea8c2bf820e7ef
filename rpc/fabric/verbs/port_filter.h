#pragma once
// verbs::PortFilter: what the user demands of the port that is chosen. Includes no verbs header.
#include <string>

namespace verbena::fabric::verbs {

struct PortFilter {
  std::string device;  // "mlx5_0", or with a port "mlx5_0:1"; several with commas; empty = any
  int gid_index = -1;  // -1 = by rule
  int pkey = -1;       // a value such as 0xffff, not an index; -1 = the first full one
  // An address that must be reachable, such as the peer's: GIDs of its subnet come first. Empty =
  // unknown.
  std::string peer_ip;
};

}  // namespace verbena::fabric::verbs
