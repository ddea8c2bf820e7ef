#include "rpc/fabric/verbs/port_facts.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/gpu_report.h"

namespace verbena::fabric::verbs {
namespace {

// One address of an interface, as a GID names it.
struct InterfaceAddress {
  GidBytes gid{};
  uint8_t prefix_bits = 0;
};

uint8_t BitsOf(const void* mask, size_t bytes) {
  int bits = 0;
  for (size_t i = 0; i < bytes; ++i) bits += std::popcount(static_cast<const uint8_t*>(mask)[i]);
  return static_cast<uint8_t>(bits);
}

std::vector<InterfaceAddress> Addresses() {
  std::vector<InterfaceAddress> result;
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return result;
  const absl::Cleanup free_all = [all] { freeifaddrs(all); };
  for (const ifaddrs* at = all; at != nullptr; at = at->ifa_next) {
    if (at->ifa_addr == nullptr || at->ifa_netmask == nullptr) continue;
    InterfaceAddress address;
    if (at->ifa_addr->sa_family == AF_INET) {
      const auto* ip = reinterpret_cast<const sockaddr_in*>(at->ifa_addr);
      const auto* mask = reinterpret_cast<const sockaddr_in*>(at->ifa_netmask);
      address.gid[10] = address.gid[11] = 0xff;
      std::memcpy(address.gid.data() + 12, &ip->sin_addr, 4);
      address.prefix_bits = static_cast<uint8_t>(96 + BitsOf(&mask->sin_addr, 4));
    } else if (at->ifa_addr->sa_family == AF_INET6) {
      const auto* ip = reinterpret_cast<const sockaddr_in6*>(at->ifa_addr);
      const auto* mask = reinterpret_cast<const sockaddr_in6*>(at->ifa_netmask);
      std::memcpy(address.gid.data(), &ip->sin6_addr, 16);
      address.prefix_bits = BitsOf(&mask->sin6_addr, 16);
    } else {
      continue;
    }
    result.push_back(address);
  }
  return result;
}

bool InterfaceUp(const std::string& name) {
  const int fd = ::socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd < 0) return true;  // The port's own state will say.
  ifreq request{};
  std::strncpy(request.ifr_name, name.c_str(), IFNAMSIZ - 1);
  const bool known = ::ioctl(fd, SIOCGIFFLAGS, &request) == 0;
  ::close(fd);
  return !known || (request.ifr_flags & IFF_UP) != 0;
}

GidKind KindOf(uint32_t type) {
  return type == IBV_GID_TYPE_ROCE_V2   ? GidKind::kRoceV2
         : type == IBV_GID_TYPE_ROCE_V1 ? GidKind::kRoceV1
                                        : GidKind::kInfiniBand;
}

std::vector<GidRow> ReadGids(ibv_context* context, uint8_t port, uint8_t ports) {
  // One table for all ports of the device.
  size_t length = 0;
  for (uint8_t other = 1; other <= ports; ++other) {
    ibv_port_attr facts{};
    if (ibv_query_port(context, other, &facts) == 0 && facts.gid_tbl_len > 0) {
      length += static_cast<size_t>(facts.gid_tbl_len);
    }
  }
  std::vector<ibv_gid_entry> entries(length);
  const ssize_t count = ibv_query_gid_table(context, entries.data(), entries.size(), 0);
  std::vector<GidRow> rows;
  const std::vector<InterfaceAddress> addresses = Addresses();
  for (ssize_t i = 0; i < count; ++i) {
    const ibv_gid_entry& entry = entries[static_cast<size_t>(i)];
    if (entry.port_num != port) continue;
    GidRow row;
    row.index = static_cast<int>(entry.gid_index);
    row.kind = KindOf(entry.gid_type);
    std::memcpy(row.gid.data(), entry.gid.raw, row.gid.size());
    char name[IF_NAMESIZE] = "";
    if (entry.ndev_ifindex != 0 && if_indextoname(entry.ndev_ifindex, name) != nullptr) {
      row.netdev = name;
      row.netdev_up = InterfaceUp(row.netdev);
    }
    for (const InterfaceAddress& address : addresses) {
      if (address.gid == row.gid) row.prefix_bits = address.prefix_bits;
    }
    rows.push_back(std::move(row));
  }
  return rows;
}

std::vector<uint16_t> ReadPkeys(ibv_context* context, uint8_t port, int length) {
  std::vector<uint16_t> pkeys;
  for (int i = 0; i < length; ++i) {
    __be16 pkey = 0;
    if (ibv_query_pkey(context, port, i, &pkey) != 0) break;
    pkeys.push_back(ntohs(pkey));
  }
  return pkeys;
}

}  // namespace

std::vector<PortRecord> ReadPorts(Device& device, const PortFilter& filter) {
  std::vector<PortRecord> records;
  ibv_device_attr attributes{};
  if (ibv_query_device(device.context(), &attributes) != 0) return records;
  for (uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
    PortRecord record;
    record.device = &device;
    PortFacts& facts = record.facts;
    facts.device = std::string(device.name());
    facts.port = port;
    facts.dead = device.dead();
    facts.numa_node = device.numa_node();
    facts.gpu_distance = DistanceToGpus(device.name());
    ibv_port_attr& now = record.attributes;
    const absl::Status asked =
        ErrnoReturned("ibv_query_port", ibv_query_port(device.context(), port, &now));
    if (asked.ok()) {
      facts.active = now.state == IBV_PORT_ACTIVE || now.state == IBV_PORT_ACTIVE_DEFER;
      facts.state = ibv_port_state_str(now.state);
      facts.ethernet = now.link_layer == IBV_LINK_LAYER_ETHERNET;
      facts.lid = facts.ethernet ? uint16_t{0} : now.lid;
      facts.speed_mbps = MbpsOf(now.active_width, now.active_speed);
      record.gids = ReadGids(device.context(), port, attributes.phys_port_cnt);
      record.pkeys = ReadPkeys(device.context(), port, now.pkey_tbl_len);
    } else {
      facts.state = std::string(asked.message());
    }
    facts.gid = ChooseGid(record.gids, filter.gid_index, filter.peer_ip);
    facts.pkey = ChoosePkey(record.pkeys, filter.pkey);
    records.push_back(std::move(record));
  }
  return records;
}

PortAddress AddressOf(const PortRecord& record, std::string why) {
  const PortFacts& facts = record.facts;
  const GidRow& row = record.gids[static_cast<size_t>(facts.gid.row)];
  PortAddress address;
  address.device = record.device;
  address.port = facts.port;
  address.ethernet = facts.ethernet;
  address.mtu_active = record.attributes.active_mtu;
  address.lid = facts.lid;
  address.grh = facts.ethernet || (record.attributes.flags & IBV_QPF_GRH_REQUIRED) != 0;
  address.gid_index = row.index;
  address.roce_version = row.kind == GidKind::kRoceV2   ? uint8_t{2}
                         : row.kind == GidKind::kRoceV1 ? uint8_t{1}
                                                        : uint8_t{0};
  std::memcpy(address.gid.raw, row.gid.data(), row.gid.size());
  address.gid_text = GidText(row.gid);
  address.pkey = facts.pkey.pkey;
  address.pkey_index = static_cast<uint16_t>(facts.pkey.index);
  address.speed_mbps = facts.speed_mbps;
  address.why = std::move(why);
  return address;
}

uint32_t MbpsOf(uint8_t width, uint8_t speed) {
  const uint32_t lanes = width == 1    ? 1
                         : width == 2  ? 4
                         : width == 4  ? 8
                         : width == 8  ? 12
                         : width == 16 ? 2
                                       : 0;
  switch (speed) {
    case 1:
      return lanes * 2'500;
    case 2:
      return lanes * 5'000;
    case 4:
    case 8:  // FDR10
      return lanes * 10'000;
    case 16:
      return lanes * 14'000;
    case 32:
      return lanes * 25'000;
    case 64:
      return lanes * 50'000;
    case 128:
      return lanes * 100'000;
    default:
      return 0;
  }
}

}  // namespace verbena::fabric::verbs
