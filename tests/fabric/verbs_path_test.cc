// How packets of a queue pair reach the peer's port: InfiniBand by LID within a subnet, RoCE by
// GID.
#include <arpa/inet.h>

#include <cstring>
#include <string>

#include "absl/strings/match.h"
#include "rpc/fabric/verbs/path.h"
#include "rpc/fabric/verbs/port_facts.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

using Catch::ContainsSubstring;

constexpr const char* kHere = "fec0:0:0:1:248a:703:8:1";
constexpr const char* kThere = "fec0:0:0:1:248a:703:8:2";
constexpr const char* kOtherSubnet = "fec0:0:0:2:248a:703:8:2";

// A port as a device would describe it, with the choices that are made of its tables.
PortAddress Port(const char* gid, uint16_t lid, bool ethernet = false, uint8_t flags = 0,
                 int pkey = -1) {
  PortRecord record;
  record.attributes.active_mtu = IBV_MTU_4096;
  record.attributes.flags = flags;
  GidRow row;
  REQUIRE(inet_pton(AF_INET6, gid, row.gid.data()) == 1);
  row.index = 2;
  row.kind = ethernet ? GidKind::kRoceV2 : GidKind::kInfiniBand;
  row.netdev = ethernet ? "eth0" : "";
  row.netdev_up = ethernet;
  record.gids = {row};
  record.pkeys = {0xffff, 0x8001, 0x0002};
  PortFacts& facts = record.facts;
  facts.port = 2;
  facts.active = true;
  facts.ethernet = ethernet;
  facts.lid = lid;
  facts.gid = ChooseGid(record.gids, -1, "");
  facts.pkey = ChoosePkey(record.pkeys, pkey);
  REQUIRE(WhyUnusable(facts) == "");
  return AddressOf(record, "");
}

QueuePairEnd EndOf(const PortAddress& port) {
  QueuePairEnd end;
  DescribePort(port, end);
  return end;
}

bool SameGid(const ibv_gid& gid, const char* text) {
  ibv_gid expected{};
  REQUIRE(inet_pton(AF_INET6, text, expected.raw) == 1);
  return memcmp(gid.raw, expected.raw, sizeof expected.raw) == 0;
}

ibv_ah_attr AddressTo(const PortAddress& port, const QueuePairEnd& peer) {
  const absl::StatusOr<Path> path = PathTo(port, peer, 3, 106);
  INFO(path.status());
  REQUIRE(path.ok());
  return path->address;
}

std::string Refusal(const PortAddress& port, const QueuePairEnd& peer) {
  const absl::Status status = PathTo(port, peer, 0, 0).status();
  REQUIRE(absl::IsInvalidArgument(status));
  return std::string(status.message());
}

TEST_CASE("within an InfiniBand subnet packets go by LID, without a GRH", "[verbs][path]") {
  const ibv_ah_attr address = AddressTo(Port(kHere, 7), EndOf(Port(kThere, 0xbfff)));
  CHECK(address.dlid == 0xbfff);
  CHECK(address.is_global == 0);
  CHECK(address.port_num == 2);
  CHECK(address.sl == 3);
}

TEST_CASE("a GRH goes along where either InfiniBand port demands it", "[verbs][path]") {
  const PortAddress plain = Port(kHere, 7);
  const PortAddress demands = Port(kThere, 8, false, IBV_QPF_GRH_REQUIRED);
  CHECK_FALSE(EndOf(plain).grh);
  CHECK(EndOf(demands).grh);
  const ibv_ah_attr there = AddressTo(plain, EndOf(demands));
  CHECK(there.is_global == 1);
  CHECK(SameGid(there.grh.dgid, kThere));
  CHECK(there.grh.sgid_index == 2);
  CHECK(there.grh.hop_limit > 1);
  CHECK(there.grh.traffic_class == 106);
  CHECK(there.dlid == 8);
  const ibv_ah_attr back = AddressTo(demands, EndOf(plain));
  CHECK(back.is_global == 1);
  CHECK(SameGid(back.grh.dgid, kHere));
  CHECK(back.dlid == 7);
}

TEST_CASE("ports of two InfiniBand subnets are not paired, even with a GRH", "[verbs][path]") {
  for (const uint8_t flags : {uint8_t{0}, uint8_t{IBV_QPF_GRH_REQUIRED}}) {
    const std::string why =
        Refusal(Port(kHere, 7, false, flags), EndOf(Port(kOtherSubnet, 8, false, flags)));
    CHECK_THAT(why, ContainsSubstring("subnet fec0:0:0:2::/64, ours in fec0:0:0:1::/64"));
  }
}

TEST_CASE("a LID that is no port's is refused", "[verbs][path]") {
  QueuePairEnd peer = EndOf(Port(kThere, 8));
  for (const int lid : {0, 0xc000, 0xffff}) {  // none, the first multicast one, the permissive one
    peer.lid = static_cast<uint16_t>(lid);
    CHECK_THAT(Refusal(Port(kHere, 7), peer),
               ContainsSubstring("LID is " + std::to_string(lid) + ", ") &&
                   ContainsSubstring("ours is 7"));
  }
}

TEST_CASE("RoCE packets go by GID, from subnet to subnet", "[verbs][path]") {
  const PortAddress here = Port("::ffff:10.0.1.1", 0, true);
  const ibv_ah_attr address = AddressTo(here, EndOf(Port("::ffff:10.0.2.1", 0, true)));
  CHECK(address.is_global == 1);
  CHECK(SameGid(address.grh.dgid, "::ffff:10.0.2.1"));
  CHECK(address.grh.sgid_index == 2);
  CHECK(address.dlid == 0);
  CHECK_FALSE(EndOf(here).grh);  // there it goes without saying
}

TEST_CASE("an address that is no single port's is refused", "[verbs][path]") {
  const PortAddress four = Port("::ffff:10.0.1.1", 0, true), six = Port("fd00::1", 0, true);
  const auto refusal = [](const PortAddress& port, const char* gid) {
    QueuePairEnd peer = EndOf(port);
    REQUIRE(inet_pton(AF_INET6, gid, peer.gid.data()) == 1);
    return Refusal(port, peer);
  };
  CHECK(refusal(four, "::ffff:224.0.0.1") ==
        "verbs: the peer's address is ::ffff:224.0.0.1, which is no port's: multicast or reserved");
  CHECK_THAT(refusal(four, "::ffff:255.255.255.255"), ContainsSubstring("multicast or reserved"));
  CHECK_THAT(refusal(four, "::ffff:0.0.0.0"), ContainsSubstring("unspecified"));
  CHECK_THAT(refusal(six, "ff02::1"), ContainsSubstring("multicast"));
  CHECK_THAT(refusal(six, "::"), ContainsSubstring("unspecified"));
  // That of the machine's own loopback interface, as no other is sure to be there.
  CHECK_THAT(refusal(four, "::ffff:127.255.255.255"), ContainsSubstring("broadcast"));
  PortAddress old = six;
  old.roce_version = 1;
  CHECK_THAT(refusal(old, "ff02::1"), ContainsSubstring("multicast"));
}

TEST_CASE("another link layer or RoCE version is refused, naming both", "[verbs][path]") {
  const PortAddress roce = Port("::ffff:10.0.1.1", 0, true);
  CHECK(Refusal(Port(kHere, 7), EndOf(roce)) ==
        "verbs: the peer's port is RoCE v2, ours InfiniBand");
  QueuePairEnd old = EndOf(roce);
  old.roce_version = 1;
  CHECK(Refusal(roce, old) == "verbs: the peer's port is RoCE v1, ours RoCE v2");
}

TEST_CASE("no RoCE v2 packet goes between IPv4 and IPv6", "[verbs][path]") {
  const PortAddress four = Port("::ffff:10.0.1.1", 0, true), six = Port("fd00::1", 0, true);
  CHECK(Refusal(four, EndOf(six)) ==
        "verbs: the peer's address is fd00::1, ours ::ffff:10.0.1.1: give both ports IPv4 "
        "addresses, or both IPv6");
  CHECK(absl::StrContains(Refusal(six, EndOf(four)), "::ffff:10.0.1.1, ours fd00::1"));
  CHECK(PathTo(six, EndOf(Port("fd00:9::1", 0, true)), 0, 0).ok());
  // Version 1 has no such header.
  PortAddress old_four = four, old_six = six;
  old_four.roce_version = old_six.roce_version = 1;
  CHECK(PathTo(old_four, EndOf(old_six), 0, 0).ok());
}

TEST_CASE("a path's MTU is the lesser of both ports'", "[verbs][path]") {
  const PortAddress here = Port(kHere, 7);
  QueuePairEnd peer = EndOf(Port(kThere, 8));
  CHECK(PathTo(here, peer, 0, 0)->mtu == IBV_MTU_4096);
  peer.mtu = IBV_MTU_2048;
  CHECK(PathTo(here, peer, 0, 0)->mtu == IBV_MTU_2048);
  PortAddress narrow = here;
  narrow.mtu_active = IBV_MTU_1024;
  CHECK(PathTo(narrow, peer, 0, 0)->mtu == IBV_MTU_1024);
}

TEST_CASE("a queue pair's partition is the index of the value that was asked for",
          "[verbs][path]") {
  CHECK(Port(kHere, 7).pkey_index == 0);
  CHECK(Port(kHere, 7, false, 0, 0x8001).pkey_index == 1);
  CHECK(Port(kHere, 7, false, 0, 0x8002).pkey == 0x0002);
  CHECK(Port(kHere, 7, false, 0, 0x8002).pkey_index == 2);
}

}  // namespace
}  // namespace verbena::fabric::verbs
