#pragma once
// Which GID and which partition key of a port a QP uses: pure functions over the port's tables.
// Includes no verbs header.
//
// On RoCE a GID is an address of a network interface, and each address is in the table once per
// RoCE version. The rule, first difference wins: interface up and in this network namespace; RoCE
// v2 before v1, which is not routable and cannot talk to v2; where the peer is known, its kind of
// address (RoCE v2 between IPv4 and IPv6 there is none), then its subnet; IPv4 before global IPv6
// before link-local; the lower index. On InfiniBand it is the lowest index.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace verbena::fabric::verbs {

using GidBytes = std::array<uint8_t, 16>;

enum class GidKind : uint8_t { kInfiniBand, kRoceV1, kRoceV2 };

struct GidRow {
  int index = 0;
  GidBytes gid{};
  GidKind kind = GidKind::kInfiniBand;
  std::string netdev;  // RoCE: the interface; empty = not in this network namespace
  bool netdev_up = false;
  uint8_t prefix_bits = 0;  // of the address there, counted from the GID's first bit; 0 = unknown
};

struct GidChoice {
  int row = -1;     // in the table; -1 = none will do
  std::string why;  // the choice, and what was passed over for which reason; or what to do
};

// `wish`: an index, or -1 for the rule. `peer_ip`: text of an address that must be reachable; empty
// or not an address = unknown.
GidChoice ChooseGid(absl::Span<const GidRow> table, int wish, absl::string_view peer_ip);

// Of an IPv4 address.
bool IsIpv4(const GidBytes& gid);

// "1 (::ffff:10.0.2.15, RoCE v2, eth0)".
std::string Describe(const GidRow& row);
std::string GidText(const GidBytes& gid);

struct PkeyChoice {
  int index = -1;
  uint16_t pkey = 0;
  std::string why;
};

// `wish`: a value, of which the membership bit (0x8000) does not count, or -1: the default
// partition as full member, else the first of which the port is full member, else the first.
PkeyChoice ChoosePkey(absl::Span<const uint16_t> table, int wish);

}  // namespace verbena::fabric::verbs
