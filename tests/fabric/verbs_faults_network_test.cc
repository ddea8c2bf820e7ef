// Between two devices: outages, loss, addresses that change; and the end of a device. Changes the
// machine's network, so these cases are hidden, and run in a guest with two interfaces only:
// guest_verbs_network.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "absl/strings/match.h"
#include "rpc/fabric/verbs/device_events.h"
#include "rpc/fabric/verbs/offer.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/fabric/verbs/sysfs.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink{1}, kOther{2};
constexpr size_t kChunk = 64 << 10;

void Shell(const std::string& command) {
  INFO(command);
  REQUIRE(std::getenv("GUEST_INDEX") != nullptr);
  REQUIRE(std::system(command.c_str()) == 0);
}

// Does the one, and at its end the other.
class Changed {
 public:
  Changed(const std::string& change, std::string back) : back_(std::move(back)) { Shell(change); }
  ~Changed() { Undo(); }
  Changed(const Changed&) = delete;
  Changed& operator=(const Changed&) = delete;
  void Undo() {
    if (!back_.empty()) CHECK(std::system(back_.c_str()) == 0);
    back_.clear();
  }

 private:
  std::string back_;
};

Changed Lossy(const std::string& interface, const std::string& loss) {
  return Changed("tc qdisc add dev " + interface + " root netem loss " + loss,
                 "tc qdisc del dev " + interface + " root");
}

contract::Subject TwoDevices(Revocation revocation = Revocation::kWindow) {
  REQUIRE(TestPort().device->name() == "rxe0");
  return contract::VerbsSubject({"two devices", revocation, true, false, "rxe1"});
}

bool Down(Rig& rig, LinkId link) {
  return rig.pair.Until([&] {
    return !rig.client_events().down[link].empty() && !rig.server_events().down[link].empty();
  });
}

// What the server's end offers a new link, or why it does not.
absl::StatusOr<Offer> Offered(Rig& rig, LinkId link) {
  absl::StatusOr<Offer> offer = rig.server().Prepare(link, Side::kServer, {});
  if (offer.ok()) rig.server().Abandon(link);
  return offer;
}

TEST_CASE("a short outage is not noticed", "[.][faults][network]") {
  const contract::Subject subject = TwoDevices();
  Rig rig(subject);
  rig.Open(kLink);
  const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
  std::vector<std::byte> to(kChunk);
  // A busy machine may make a long one of it, which proves nothing.
  for (uint32_t attempt = 1; attempt < 10; ++attempt) {
    Changed lossy = Lossy("eth0", "100%");
    const auto start = std::chrono::steady_clock::now();
    rig.Read({attempt, 1}, kLink, key, to.data(), kChunk);
    REQUIRE(contract::SendFrame(rig.client(), kLink, 4000, attempt));
    rig.pair.Settle(std::chrono::milliseconds(50));
    REQUIRE(rig.client_events().reads[ReadSlot{attempt, 1}.word()].empty());
    lossy.Undo();
    const auto took = std::chrono::steady_clock::now() - start;
    const Error error = rig.Done({attempt, 1});
    if (took > std::chrono::milliseconds(350)) {
      WARN("an outage too long to be called short");
      if (error == Error::kOk) continue;
      return;
    }
    REQUIRE(error == Error::kOk);
    REQUIRE(memcmp(to.data(), rig.region->base(), kChunk) == 0);
    rig.Works(kLink);
    REQUIRE(rig.client_events().down[kLink].empty());
    return;
  }
}

TEST_CASE("an outage that lasts ends the link, and another is made afterwards",
          "[.][faults][network]") {
  const contract::Subject subject = TwoDevices();
  Rig rig(subject);
  rig.Open(kLink);
  const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
  std::vector<std::byte> to(kChunk);
  Shell("ip link set eth1 down");
  rig.Read({1, 1}, kLink, key, to.data(), kChunk);
  contract::SendFrame(rig.client(), kLink, 4000, 1);
  contract::SendFrame(rig.server(), kLink, 4000, 1);
  REQUIRE(Down(rig, kLink));
  const Error error = rig.Done({1, 1});
  REQUIRE((error == Error::kLaneDown || error == Error::kLinkDown));
  REQUIRE(absl::IsUnavailable(rig.client_events().down[kLink][0]));
  REQUIRE(absl::IsUnavailable(rig.server_events().down[kLink][0]));
  REQUIRE(rig.client_events().down[kLink].size() == 1);
  // Nothing is made meanwhile, and the reason is said.
  REQUIRE(rig.pair.Until([&] { return absl::IsUnavailable(Offered(rig, kOther).status()); }));
  Shell("ip link set eth1 up");
  // As tests/guest/session made it.
  Shell("ip address replace fd77:1::1/16 dev eth1 nodad");
  Shell("ip -6 route replace fd77:0::1/128 dev eth1 table 51");
  REQUIRE(rig.pair.Until([&] { return Offered(rig, kOther).ok(); }));
  rig.client_events().down[kLink].clear();
  rig.server_events().down[kLink].clear();
  rig.Open(kLink);
}

// How often the devices sent something again.
uint64_t Retries() {
  uint64_t sum = 0;
  for (const char* device : {"rxe0", "rxe1"}) {
    sum += TroubleIn(HardwareCounters(device, 1)).retries.value();
  }
  return sum;
}

TEST_CASE("nothing is lost where packets are", "[.][faults][network]") {
  const Revocation rung = GENERATE(Revocation::kWindow, Revocation::kLeaseMr);
  const contract::Subject subject = TwoDevices(rung);
  Rig rig(subject);
  rig.Open(kLink);
  const size_t most = rig.client().traits().read_chunk_bytes;
  const RemoteKey key = rig.Lease({1, 1}, kLink, most);
  std::vector<std::byte> to(most);
  const uint64_t retries = Retries();
  const Changed there = Lossy("eth0", "1%"), back = Lossy("eth1", "1%");
  for (uint32_t i = 0; i < 40; ++i) {
    INFO("round " << i);
    // Frames of all sizes, while READs are under way.
    const size_t before = rig.server_events().frames_of(kLink);
    const uint32_t bytes = 100 + i * 190;
    const size_t read_bytes = i % 10 == 9 ? most : kChunk;
    memset(to.data(), 0, read_bytes);
    rig.Read({i, 1}, kLink, key, to.data(), read_bytes);
    for (uint32_t k = 0; k < 3; ++k) {
      REQUIRE(contract::SendFrame(rig.client(), kLink, bytes + k, i + k));
    }
    REQUIRE(rig.Done({i, 1}) == Error::kOk);
    REQUIRE(memcmp(to.data(), rig.region->base(), read_bytes) == 0);
    REQUIRE(rig.pair.Until([&] { return rig.server_events().frames_of(kLink) == before + 3; }));
    const auto& frames = rig.server_events().frames[kLink];
    for (uint32_t k = 0; k < 3; ++k) {
      REQUIRE(contract::FrameIs(frames[frames.size() - 3 + k], bytes + k, i + k));
    }
    // Leases come and go.
    if (i % 4 == 0) rig.Works(kLink);
  }
  REQUIRE(Retries() > retries);
  REQUIRE(rig.client_events().lanes_down[kLink].empty());
}

TEST_CASE("a new link uses the address that its port has now", "[.][faults][network]") {
  const contract::Subject subject = TwoDevices();
  Rig rig(subject);
  rig.Open(kLink);
  REQUIRE(rig.server().ReadWays(kLink).find("10.78.0.1") != std::string::npos);
  const Changed moved(
      "ip address del 10.78.0.1/24 dev eth1; ip address add 10.78.0.50/24 dev eth1",
      "ip address del 10.78.0.50/24 dev eth1; ip address add 10.78.0.1/24 dev eth1");
  // The address is a port's when the kernel has said so.
  REQUIRE(rig.pair.Until([&] {
    const absl::StatusOr<Offer> offer = Offered(rig, kOther);
    REQUIRE(offer.ok());
    return ParseLinkOffer(offer->blob)->end.gid.back() == 50;
  }));
  rig.Open(kOther);
  REQUIRE(rig.server().ReadWays(kOther).find("10.78.0.50") != std::string::npos);
  rig.Closed(kOther);
}

// What an end offers by itself.
bool OffersIpv4(Fabric& fabric, Side side) {
  absl::StatusOr<Offer> offer = fabric.Prepare(kOther, side, {});
  REQUIRE(offer.ok());
  fabric.Abandon(kOther);
  return IsIpv4(ParseLinkOffer(offer->blob)->end.gid);
}

TEST_CASE("a server takes an address of its client's kind", "[.][faults][network]") {
  const contract::Subject subject = TwoDevices();
  Rig rig(subject);
  const Changed gone("ip address del 10.77.0.1/24 dev eth0",
                     "ip address add 10.77.0.1/24 dev eth0");
  REQUIRE(rig.pair.Until([&] { return !OffersIpv4(rig.client(), Side::kClient); }));
  REQUIRE(rig.pair.Until([&] { return OffersIpv4(rig.server(), Side::kServer); }));
  rig.Open(kLink);
  CHECK(absl::StrContains(rig.client().ReadWays(kLink), "fd77::1"));
  CHECK(absl::StrContains(rig.server().ReadWays(kLink), "fd77:1::1"));
}

TEST_CASE("addresses of different kinds are refused by name", "[.][faults][network]") {
  const contract::Subject subject = TwoDevices();
  Rig rig(subject);
  const Changed gone("ip address del 10.78.0.1/24 dev eth1",
                     "ip address add 10.78.0.1/24 dev eth1");
  REQUIRE(rig.pair.Until([&] { return !OffersIpv4(rig.server(), Side::kServer); }));
  absl::StatusOr<Offer> theirs = rig.client().Prepare(kLink, Side::kClient, {});
  REQUIRE(theirs.ok());
  REQUIRE(rig.server().Prepare(kLink, Side::kServer, theirs->blob).ok());
  Sockets sockets;
  const absl::Status refused = rig.server().Complete(kLink, *theirs, sockets);
  rig.client().Abandon(kLink);
  INFO(refused);
  REQUIRE(absl::IsInvalidArgument(refused));
  REQUIRE(absl::StrContains(refused.message(), "::ffff:10.77.0.1, ours fd77:1::1"));
}

// Soft-RoCE waits for its users before it goes, so the device's last event is made up here; after
// it the process has no device.
TEST_CASE("when a device is gone every link ends, and the process goes on", "[.][faults][fatal]") {
  const contract::Subject& rung = Rungs()[0];
  std::vector<std::byte> to(8 * kChunk);
  {
    Rig rig(rung);
    rig.Open(kLink);
    rig.Open(kOther);
    const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
    for (uint32_t i = 0; i < 8; ++i) rig.Read({i, 1}, kLink, key, to.data() + i * kChunk, kChunk);
    rig.server().Lease({2, 1}, kLink, OwnerLane(), rig.region, rig.region->base(), 4096);
    DeviceEvents::Deliver(*TestPort().device, {DeviceEvent::kDeviceFatal, 0, 0, nullptr});
    for (const LinkId link : {kLink, kOther}) {
      REQUIRE(Down(rig, link));
      REQUIRE(rig.client_events().down[link].size() == 1);
      INFO(rig.client_events().down[link][0]);
      REQUIRE(absl::IsUnavailable(rig.client_events().down[link][0]));
    }
    for (uint32_t i = 0; i < 8; ++i) rig.Done({i, 1});
    REQUIRE(rig.server_events().leased[LeaseSlot{2, 1}.word()].size() == 1);
    REQUIRE(absl::IsUnavailable(rig.server().Prepare(LinkId{3}, Side::kServer, {}).status()));
  }
  // What is chosen from now on is another, or none.
  const absl::StatusOr<PortAddress> other = ChoosePort(-1, Settings::FromEnvironment().filter);
  REQUIRE((!other.ok() || other->device != TestPort().device));
}

}  // namespace
}  // namespace verbena::fabric::verbs
