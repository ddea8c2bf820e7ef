#include "rpc/fabric/verbs/path.h"

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/base/unique_fd.h"
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

// The routing table knows; a socket that is not to broadcast is refused such an address.
bool IsBroadcast(const uint8_t* ipv4) {
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(4791);  // RoCE v2; nothing is sent
  memcpy(&to.sin_addr, ipv4, sizeof to.sin_addr);
  const UniqueFd fd(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return fd && connect(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof to) != 0 &&
         errno == EACCES;
}

// Empty: it may be a port's.
absl::string_view WhyNoPort(const GidBytes& gid, uint8_t roce_version) {
  if (gid == GidBytes{}) return "unspecified";
  if (gid[0] == 0xff) return "multicast";
  if (roce_version != 2 || !IsIpv4(gid)) return "";
  const uint8_t* const ipv4 = gid.data() + 12;
  if (ipv4[0] == 0) return "unspecified";
  if (ipv4[0] >= 224) return "multicast or reserved";
  return IsBroadcast(ipv4) ? "broadcast" : "";
}

// Soft-RoCE, for one, says no more of it than "invalid". With packets to several ports it keeps
// whoever destroys the queue pair waiting for most of a minute.
absl::Status CheckRoce(const PortAddress& port, const QueuePairEnd& peer) {
  const absl::string_view why = WhyNoPort(peer.gid, port.roce_version);
  if (!why.empty()) {
    return absl::InvalidArgumentError(absl::StrCat(
        "verbs: the peer's address is ", GidText(peer.gid), ", which is no port's: ", why));
  }
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
