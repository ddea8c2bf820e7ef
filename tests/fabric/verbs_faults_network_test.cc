// Between two devices: an outage; and the end of a device. Changes the
// machine's network, so these cases are hidden, and run in a guest with two interfaces only:
// guest_verbs_network.
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "rpc/fabric/verbs/device_events.h"
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

contract::Subject TwoDevices() {
  REQUIRE(TestPort().device->name() == "rxe0");
  return contract::VerbsSubject({"two devices", Revocation::kWindow, true, false, "rxe1"});
}

bool Down(Rig& rig, LinkId link) {
  return rig.pair.Until([&] {
    return !rig.client_events().down[link].empty() && !rig.server_events().down[link].empty();
  });
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
  REQUIRE(rig.pair.Until([&] {
    absl::StatusOr<Offer> offer = rig.server().Prepare(kOther, Side::kServer, {});
    if (offer.ok()) rig.server().Abandon(kOther);
    return absl::IsUnavailable(offer.status());
  }));
  Shell("ip link set eth1 up");
  Shell("ip address replace fd77:1::1/16 dev eth1 nodad");
  REQUIRE(rig.pair.Until([&] {
    absl::StatusOr<Offer> offer = rig.server().Prepare(kOther, Side::kServer, {});
    if (offer.ok()) rig.server().Abandon(kOther);
    return offer.ok();
  }));
  rig.client_events().down[kLink].clear();
  rig.server_events().down[kLink].clear();
  rig.Open(kLink);
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
  const absl::StatusOr<PortAddress> other = ChoosePort(-1, PortFilter::FromEnvironment());
  REQUIRE((!other.ok() || other->device != TestPort().device));
}

}  // namespace
}  // namespace verbena::fabric::verbs
