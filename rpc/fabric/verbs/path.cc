#include "rpc/fabric/verbs/path.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/verbs/gid_choice.h"

namespace verbena::fabric::verbs {
namespace {

constexpr uint8_t kHopLimit = 64;
constexpr size_t kPrefixBytes = 8;
constexpr uint16_t kUnicastLidMax = 0xbfff;

std::string LayerText(bool ethernet, uint8_t roce_version) {
  return ethernet ? absl::StrCat("RoCE v", static_cast<int>(roce_version))
                  : std::string("InfiniBand");
}

std::string SubnetText(const uint8_t* gid) {
  GidBytes prefix{};
  memcpy(prefix.data(), gid, kPrefixBytes);
  return absl::StrCat(GidText(prefix), "/64");
}

absl::Status CheckInfiniBand(const PortAddress& port, const QueuePairEnd& peer) {
  if (peer.lid == 0 || peer.lid > kUnicastLidMax) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: the peer's LID is ", peer.lid,
                                                   ", which is no port's; ours is ", port.lid));
  }
  if (memcmp(port.gid.raw, peer.gid.data(), kPrefixBytes) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("verbs: the peer's port is in InfiniBand subnet ", SubnetText(peer.gid.data()),
                     ", ours in ", SubnetText(port.gid.raw)));
  }
  return absl::OkStatus();
}

// Soft-RoCE, for one, says no more of it than "invalid".
absl::Status CheckRoce(const PortAddress& port, const QueuePairEnd& peer) {
  GidBytes mine;
  memcpy(mine.data(), port.gid.raw, mine.size());
  if (port.roce_version != 2 || IsIpv4(mine) == IsIpv4(peer.gid)) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("verbs: the peer's address is ", GidText(peer.gid),
                                                 ", ours ", GidText(mine),
                                                 ": give both ports IPv4 addresses, or both IPv6"));
}

}  // namespace

void DescribePort(const PortAddress& port, QueuePairEnd& end) {
  memcpy(end.gid.data(), port.gid.raw, sizeof port.gid.raw);
  end.lid = port.lid;
  end.mtu = static_cast<uint8_t>(port.mtu_active);
  end.ethernet = port.ethernet;
  end.roce_version = port.ethernet ? port.roce_version : uint8_t{0};
  end.grh = !port.ethernet && port.grh;
}

absl::StatusOr<Path> PathTo(const PortAddress& port, const QueuePairEnd& peer,
                            uint8_t service_level, uint8_t traffic_class) {
  const uint8_t version = port.ethernet ? port.roce_version : uint8_t{0};
  if (peer.ethernet != port.ethernet || peer.roce_version != version) {
    return absl::InvalidArgumentError(absl::StrCat("verbs: the peer's port is ",
                                                   LayerText(peer.ethernet, peer.roce_version),
                                                   ", ours ", LayerText(port.ethernet, version)));
  }
  const absl::Status status = port.ethernet ? CheckRoce(port, peer) : CheckInfiniBand(port, peer);
  if (!status.ok()) return status;
  Path path;
  path.mtu = static_cast<ibv_mtu>(std::min(peer.mtu, static_cast<uint8_t>(port.mtu_active)));
  ibv_ah_attr& address = path.address;
  address.port_num = port.port;
  address.sl = service_level;
  address.dlid = peer.lid;
  if (port.grh || peer.grh) {
    address.is_global = 1;
    memcpy(address.grh.dgid.raw, peer.gid.data(), peer.gid.size());
    address.grh.sgid_index = static_cast<uint8_t>(port.gid_index);
    address.grh.hop_limit = kHopLimit;
    address.grh.traffic_class = traffic_class;
  }
  return path;
}

}  // namespace verbena::fabric::verbs
