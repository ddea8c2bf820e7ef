// Which GID, partition and port are chosen, and what is said of it.
#include <arpa/inet.h>

#include <string>
#include <vector>

#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/port_choice.h"
#include "tests/catch.h"

namespace verbena::fabric::verbs {
namespace {

using Catch::ContainsSubstring;

GidRow Row(int index, const char* address, GidKind kind, std::string netdev = "eth0",
           bool up = true, int prefix_bits = 0) {
  GidRow row;
  row.index = index;
  REQUIRE(inet_pton(AF_INET6, address, row.gid.data()) == 1);
  row.kind = kind;
  row.netdev = std::move(netdev);
  row.netdev_up = up;
  row.prefix_bits = static_cast<uint8_t>(prefix_bits);
  return row;
}

int IndexOf(const std::vector<GidRow>& table, int wish = -1, absl::string_view peer = "") {
  const GidChoice choice = ChooseGid(table, wish, peer);
  return choice.row < 0 ? -1 : table[static_cast<size_t>(choice.row)].index;
}

constexpr auto kV1 = GidKind::kRoceV1;
constexpr auto kV2 = GidKind::kRoceV2;

TEST_CASE("a GID is RoCE v2 before v1, IPv4 before global IPv6 before link-local",
          "[verbs][choice]") {
  std::vector<GidRow> table = {Row(0, "fe80::1", kV1), Row(1, "fe80::1", kV2),
                               Row(2, "fd00::1", kV1), Row(4, "::ffff:10.0.2.15", kV1)};
  CHECK(IndexOf(table) == 1);
  table.push_back(Row(5, "fd00::1", kV2));
  CHECK(IndexOf(table) == 5);
  table.push_back(Row(7, "::ffff:10.0.2.15", kV2));
  table.push_back(Row(9, "::ffff:10.0.3.15", kV2));
  CHECK(IndexOf(table) == 7);
  const std::string why = ChooseGid(table, -1, "").why;
  CHECK_THAT(why, ContainsSubstring("GID 7 (::ffff:10.0.2.15, RoCE v2, eth0); passed over: 9 "));
  CHECK_THAT(why, ContainsSubstring("9 (::ffff:10.0.3.15, RoCE v2, eth0): a higher index"));
  CHECK_THAT(why, ContainsSubstring("1 (fe80::1, RoCE v2, eth0): link-local"));
  CHECK_THAT(why, ContainsSubstring("5 (fd00::1, RoCE v2, eth0): IPv6"));
  CHECK_THAT(why, ContainsSubstring("4 (::ffff:10.0.2.15, RoCE v1, eth0): RoCE v1"));
}

TEST_CASE("an IPv4 link-local address is as good as an IPv6 one", "[verbs][choice]") {
  CHECK(IndexOf({Row(0, "::ffff:169.254.1.1", kV2), Row(1, "fd00::1", kV2)}) == 1);
}

TEST_CASE("a GID whose interface is down, or elsewhere, is passed over", "[verbs][choice]") {
  const GidRow down = Row(0, "::ffff:10.0.2.15", kV2, "eth0", false);
  CHECK(IndexOf({down, Row(3, "fe80::2", kV1, "eth1")}) == 3);
  // Another network namespace: only if there is nothing else.
  const GidRow foreign = Row(1, "::ffff:10.0.9.1", kV2, "");
  CHECK(IndexOf({foreign, Row(3, "fe80::2", kV2, "eth1")}) == 3);
  CHECK(IndexOf({foreign}) == 1);
  const GidChoice none = ChooseGid(std::vector<GidRow>{down}, -1, "");
  CHECK(none.row == -1);
  CHECK_THAT(none.why, ContainsSubstring("eth0 is down (ip link set eth0 up)"));
}

TEST_CASE("a GID in the peer's subnet comes first", "[verbs][choice]") {
  const std::vector<GidRow> table = {Row(1, "::ffff:10.0.2.15", kV2, "eth0", true, 96 + 24),
                                     Row(3, "::ffff:10.1.160.1", kV2, "eth1", true, 96 + 20),
                                     Row(5, "fd00:7::1", kV2, "eth1", true, 64),
                                     Row(7, "fd00:8::1", kV2, "eth2", true, 0)};
  CHECK(IndexOf(table) == 1);
  CHECK(IndexOf(table, -1, "10.0.2.77") == 1);
  CHECK(IndexOf(table, -1, "10.1.175.255") == 3);
  CHECK(IndexOf(table, -1, "10.1.176.0") == 1);  // in nobody's: by the other rules
  CHECK(IndexOf(table, -1, "fd00:7::99") == 5);
  CHECK(IndexOf(table, -1, "fd00:7::99%eth1") == 5);
  CHECK(IndexOf(table, -1, "not an address") == 1);
  CHECK_THAT(ChooseGid(table, -1, "10.1.160.9").why, ContainsSubstring("not in the peer's subnet"));
}

TEST_CASE("a GID of the peer's kind of address comes first", "[verbs][choice]") {
  const std::vector<GidRow> table = {Row(1, "::ffff:10.0.2.15", kV2, "eth0", true, 96 + 24),
                                     Row(3, "fe80::1", kV2, "eth0", true, 64),
                                     Row(5, "fd00:7::1", kV2, "eth0", true, 64),
                                     Row(6, "fd00:8::1", kV2, "eth0", true, 64)};
  CHECK(IndexOf(table, -1, "10.9.9.9") == 1);
  CHECK(IndexOf(table, -1, "::ffff:10.9.9.9") == 1);
  CHECK(IndexOf(table, -1, "fd00:9::9") == 5);
  CHECK(IndexOf(table, -1, "fd00:8::9") == 6);
  CHECK_THAT(ChooseGid(table, -1, "fd00:9::9").why, ContainsSubstring("eth0): IPv4"));
  // Where there is none of it, another is chosen all the same.
  CHECK(IndexOf({table[0]}, -1, "fd00:9::9") == 1);
}

TEST_CASE("a GID that is asked for is taken or refused, never replaced", "[verbs][choice]") {
  const std::vector<GidRow> table = {Row(0, "fe80::1", kV1), Row(2, "::ffff:10.0.2.15", kV2),
                                     Row(3, "fd00::1", kV2, "eth1", false)};
  CHECK(IndexOf(table, 0) == 0);
  CHECK(IndexOf(table, 1) == -1);
  CHECK_THAT(ChooseGid(table, 1, "").why,
             ContainsSubstring(
                 "no GID 1, which was asked for (VERBENA_VERBS_GID_INDEX); there are: 0, 2, 3"));
  CHECK(IndexOf(table, 3) == -1);
  CHECK_THAT(ChooseGid(table, 3, "").why, ContainsSubstring("eth1 is down"));
}

TEST_CASE("without a GID it is said how to get one", "[verbs][choice]") {
  CHECK_THAT(ChooseGid({}, -1, "").why, ContainsSubstring("ip addr add"));
  CHECK(IndexOf({Row(0, "::", kV2)}) == -1);
}

TEST_CASE("on InfiniBand the GID is the first", "[verbs][choice]") {
  const auto ib = GidKind::kInfiniBand;
  CHECK(IndexOf({Row(1, "fec0::1", ib, ""), Row(0, "fe80::2:c903", ib, "")}) == 0);
}

TEST_CASE("a long GID table is cut short in the text", "[verbs][choice]") {
  std::vector<GidRow> table;
  for (int i = 0; i < 250; ++i) table.push_back(Row(i, "::ffff:10.0.0.1", kV2));
  const GidChoice choice = ChooseGid(table, -1, "");
  CHECK(choice.row == 0);
  CHECK_THAT(choice.why, ContainsSubstring("and 243 more"));
  CHECK(choice.why.size() < 1000);
}

TEST_CASE("a pkey is chosen by value", "[verbs][choice]") {
  const std::vector<uint16_t> table = {0x0001, 0x8002, 0x7fff, 0x8001, 0xffff, 0};
  CHECK(ChoosePkey(table, -1).index == 4);
  CHECK(ChoosePkey(table, 0x8001).index == 3);
  CHECK(ChoosePkey(table, 0x0001).index == 3);  // full membership is more
  CHECK(ChoosePkey(table, 0x0002).pkey == 0x8002);
  CHECK(ChoosePkey(table, 0x7fff).index == 4);
  const std::vector<uint16_t> limited = {0x7fff, 0};
  CHECK(ChoosePkey(limited, -1).index == 0);
  CHECK_THAT(ChoosePkey(limited, -1).why, ContainsSubstring("as limited member"));
  CHECK_THAT(ChoosePkey(limited, 0x8005).why,
             ContainsSubstring(
                 "no pkey 0x8005, which was asked for (VERBENA_VERBS_PKEY); there are: 0x7fff"));
  CHECK(ChoosePkey(std::vector<uint16_t>{0, 0x8000}, -1).index == -1);
  CHECK(ChoosePkey({}, 0).index == -1);
}

PortFacts Port(std::string device, int node, uint32_t gigabits) {
  PortFacts port;
  port.device = std::move(device);
  port.active = true;
  port.state = "PORT_ACTIVE";
  port.ethernet = true;
  port.numa_node = node;
  port.speed_mbps = gigabits * 1000;
  port.gid = {0, "GID x"};
  port.pkey = {0, 0xffff, "pkey x"};
  return port;
}

int Distance(int from, int to) { return from == to ? 10 : from + to == 3 ? 32 : 16; }

std::string Picked(const std::vector<PortFacts>& ports, int node, const std::string& device = "") {
  PortFilter filter;
  filter.device = device;
  const PortChoice choice = PickPort(ports, node, filter, Distance);
  if (choice.index < 0) return "";
  const PortFacts& port = ports[static_cast<size_t>(choice.index)];
  return port.device + ":" + std::to_string(port.port);
}

TEST_CASE("of ports equally near, that behind a GPU's switch comes first", "[verbs][choice]") {
  std::vector<PortFacts> ports = {Port("mlx5_0", 0, 400), Port("mlx5_1", 0, 200),
                                  Port("mlx5_2", 0, 400), Port("mlx5_3", 1, 400)};
  ports[0].gpu_distance = 206;
  ports[1].gpu_distance = 4;
  ports[2].gpu_distance = 104;
  ports[3].gpu_distance = 2;
  CHECK(Picked(ports, 0) == "mlx5_1:1");
  CHECK(Picked(ports, 1) == "mlx5_3:1");
  const std::string why = PickPort(ports, 0, {}, Distance).why;
  CHECK_THAT(why, ContainsSubstring("mlx5_1:1 (NUMA node 0, distance 10, a GPU behind one switch"));
  CHECK_THAT(why, ContainsSubstring("mlx5_2:1 (farther from the GPUs)"));
  ports[1].gpu_distance = -1;
  CHECK(Picked(ports, 0) == "mlx5_2:1");
}

TEST_CASE("a port is the nearest, then the fastest, then by name", "[verbs][choice]") {
  std::vector<PortFacts> ports = {Port("mlx5_3", 0, 100), Port("mlx5_1", 0, 200),
                                  Port("mlx5_2", 0, 200), Port("mlx5_0", 1, 400)};
  CHECK(Picked(ports, 0) == "mlx5_1:1");
  CHECK(Picked(ports, 1) == "mlx5_0:1");
  CHECK(Picked(ports, -1) == "mlx5_0:1");  // no node: the fastest
  CHECK(Picked(ports, 3) == "mlx5_0:1");   // distance 16; node 0 is 32 away
  const std::string why = PickPort(ports, 0, {}, Distance).why;
  CHECK_THAT(why, ContainsSubstring("mlx5_1:1 (NUMA node 0, distance 10, 200 Gb/s) before"));
  CHECK_THAT(why, ContainsSubstring("mlx5_2:1 (a later name)"));
  CHECK_THAT(why, ContainsSubstring("mlx5_3:1 (slower, 100 Gb/s)"));
  CHECK_THAT(why, ContainsSubstring("mlx5_0:1 (farther)"));
  CHECK_THAT(why, ContainsSubstring("; GID x; pkey x"));
}

TEST_CASE("a port of unknown node is farther than a near one, nearer than a distant one",
          "[verbs][choice]") {
  const std::vector<PortFacts> ports = {Port("near", 0, 10), Port("unknown", -1, 400)};
  CHECK(Picked(ports, 0) == "near:1");
  CHECK(Picked(ports, 3) == "unknown:1");
}

TEST_CASE("a port that cannot be used is passed over, with its reason", "[verbs][choice]") {
  PortFacts down = Port("a", 0, 400);
  down.active = false;
  down.state = "PORT_DOWN";
  PortFacts dead = Port("b", 0, 400);
  dead.dead = true;
  PortFacts without_gid = Port("c", 0, 400);
  without_gid.gid = {-1, "no GID: why"};
  PortFacts without_lid = Port("d", 0, 400);
  without_lid.ethernet = false;
  PortFacts without_pkey = Port("e", 0, 400);
  without_pkey.pkey = {-1, 0, "no pkey: why"};
  std::vector<PortFacts> ports = {down, dead, without_gid, without_lid, without_pkey};
  const PortChoice none = PickPort(ports, 0, {}, Distance);
  CHECK(none.index == -1);
  CHECK(none.named);
  CHECK_THAT(none.why, ContainsSubstring("a:1: the link is not up (PORT_DOWN)"));
  CHECK_THAT(none.why, ContainsSubstring("b:1: the device had a fatal error"));
  CHECK_THAT(none.why, ContainsSubstring("c:1: no GID: why"));
  CHECK_THAT(none.why, ContainsSubstring("d:1: it has no LID"));
  CHECK_THAT(none.why, ContainsSubstring("e:1: no pkey: why"));
  ports.push_back(Port("f", 1, 1));
  CHECK(Picked(ports, 0) == "f:1");
  CHECK_THAT(PickPort(ports, 0, {}, Distance).why, ContainsSubstring("not usable: a:1"));
  ports[3].lid = 7;
  CHECK(Picked(ports, 0) == "d:1");
}

TEST_CASE("a filter names devices and ports", "[verbs][choice]") {
  std::vector<PortFacts> ports = {Port("mlx5_0", 0, 100), Port("mlx5_0", 0, 100),
                                  Port("mlx5_10", 0, 400)};
  ports[1].port = 2;
  CHECK(Picked(ports, 0, "mlx5_0") == "mlx5_0:1");
  CHECK(Picked(ports, 0, "mlx5_0:2") == "mlx5_0:2");
  CHECK(Picked(ports, 0, "mlx5_1") == "");
  CHECK(Picked(ports, 0, "nothing, mlx5_10:1") == "mlx5_10:1");
  CHECK(Picked(ports, 0, " ") == "mlx5_10:1");
  PortFilter filter;
  filter.device = "mlx5_1";
  const PortChoice none = PickPort(ports, 0, filter, Distance);
  CHECK_FALSE(none.named);
  CHECK(none.why ==
        "VERBENA_VERBS_DEVICE=mlx5_1: no RDMA port is named mlx5_1; there are: mlx5_0:1, "
        "mlx5_0:2, mlx5_10:1");
  CHECK(none.unmatched == none.why);
  // What is left of a list does, and the rest is said.
  filter.device = "mlx5_1, mlx5_10,mlx5_0:3";
  const PortChoice some = PickPort(ports, 0, filter, Distance);
  CHECK(some.index == 2);
  CHECK_THAT(some.unmatched, ContainsSubstring("no RDMA port is named mlx5_1, mlx5_0:3; there"));
  filter.device = "mlx5_10";
  CHECK(PickPort(ports, 0, filter, Distance).unmatched.empty());
  ports[2].active = false;
  CHECK(PickPort(ports, 0, filter, Distance).named);
  CHECK_THAT(PickPort({}, 0, filter, Distance).why, ContainsSubstring("there is none"));
  CHECK(PickPort({}, 0, {}, Distance).why == "no RDMA port");
}

}  // namespace
}  // namespace verbena::fabric::verbs
