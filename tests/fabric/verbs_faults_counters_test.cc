// What a fabric and its device count: each number moves when its thing happens, and only then.
#include <cstdlib>
#include <vector>

#include "rpc/fabric/verbs/sysfs.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

using contract::SendFrame;

constexpr LinkId kLink{1}, kOther{2}, kRaw{3};

uint64_t LeasesOf(const LinkCounters& counters, Revocation rung) {
  return rung == Revocation::kWindow    ? counters.window_leases
         : rung == Revocation::kLeaseMr ? counters.registered_leases
                                        : counters.lane_leases;
}

TEST_CASE("a link counts its frames, doorbells, READs and leases", "[faults][counters]") {
  VERBENA_EACH_RUNG(rung);
  Rig rig(rung);
  rig.Open(kLink);
  rig.Open(kOther);
  const LinkCounters before = rig.client().CountersOf(kLink);
  const LinkCounters owner_before = rig.server().CountersOf(kLink);
  const LinkCounters others = rig.client().CountersOf(kOther);
  // Three frames of one tick leave with one doorbell, two small ones within their work requests.
  for (const uint32_t bytes : {64u, 3000u, 64u}) REQUIRE(SendFrame(rig.client(), kLink, bytes, 1));
  rig.client().EndTick();
  const size_t frames = rig.server_events().frames_of(kLink);
  REQUIRE(rig.pair.Until([&] { return rig.server_events().frames_of(kLink) == frames + 3; }));
  LinkCounters now = rig.client().CountersOf(kLink);
  CHECK(now.sends == before.sends + 3);
  CHECK(now.send_bytes == before.send_bytes + 3128);
  CHECK(now.inline_sends <= before.inline_sends + 2);
  CHECK(now.doorbells == before.doorbells + 1);
  CHECK(now.send_ticks == before.send_ticks + 1);
  CHECK(rig.server().CountersOf(kLink).receives == owner_before.receives + 3);
  // A lease, by the rung and no other, and one READ of it.
  const RemoteKey key = rig.Lease({1, 1}, kLink, 5000);
  std::vector<std::byte> to(5000);
  rig.Read({1, 1}, kLink, key, to.data(), to.size());
  REQUIRE(rig.Done({1, 1}) == Error::kOk);
  rig.Revoked({1, 1}, false);
  now = rig.client().CountersOf(kLink);
  const LinkCounters owner = rig.server().CountersOf(kLink);
  CHECK(now.reads == before.reads + 1);
  CHECK(now.read_bytes == before.read_bytes + 5000);
  CHECK(now.read_doorbells == before.read_doorbells + 1);
  const Revocation way = rig.server().traits().revocation;
  CHECK(LeasesOf(owner, way) == LeasesOf(owner_before, way) + 1);
  CHECK(owner.window_leases + owner.registered_leases + owner.lane_leases == LeasesOf(owner, way));
  CHECK(rig.client().CountersOf(kOther).reads == others.reads);
  CHECK(rig.client().CountersOf(kOther).sends == others.sends);
}

TEST_CASE("a fabric adds up what its links count, also those that are gone", "[faults][counters]") {
  VERBENA_EACH_RUNG(rung);
  Rig rig(rung);
  rig.Open(kLink);
  rig.Open(kOther);
  CHECK(rig.client().counters().links.reads == 2);  // Works() READs once
  rig.Closed(kLink);
  CHECK(rig.client().CountersOf(kLink).reads == 0);
  const FabricCounters counters = rig.client().counters();
  CHECK(counters.links.reads == 2);
  CHECK(counters.links.read_bytes == 8192);
  CHECK(counters.links.lanes_broken == 0);  // they went down with their link
  CHECK(LeasesOf(rig.server().counters().links, rig.server().traits().revocation) == 2);
}

TEST_CASE("lanes that break, and sends that wait, are counted", "[faults][counters]") {
  VERBENA_EACH_RUNG(rung);
  Rig rig(rung);
  rig.Open(kLink);
  rig.client().BreakLane(kLink, ReaderLane());
  rig.server().BreakLane(kLink, OwnerLane());
  REQUIRE(rig.pair.Until([&] { return !rig.client_events().lanes_down[kLink].empty(); }));
  CHECK(rig.client().CountersOf(kLink).lanes_broken == 1);
  CHECK(rig.server().CountersOf(kLink).lanes_broken == 1);
  // Within the peer's window, but never polled: the send queue or the buffers are used up.
  const uint64_t waits = rig.client().CountersOf(kLink).send_waits;
  std::vector<OutFrame> taken;
  OutFrame frame;
  while (rig.client().AcquireFrame(kLink, frame)) taken.push_back(frame);
  CHECK(rig.client().CountersOf(kLink).send_waits == waits + 1);
  for (const OutFrame& one : taken) rig.client().Discard(kLink, one);
}

TEST_CASE("a device counts what it sends again", "[faults][counters]") {
  if (std::getenv("GUEST_INDEX") == nullptr) return;  // Not every driver does.
  Rig rig(Rungs()[2]);
  rig.Open(kLink);
  RawPeer raw(rig.server(), kRaw);
  raw.OpenLane();
  const RemoteKey key = contract::LeaseNow(rig.pair, rig.server(), rig.server_events(), {5, 1},
                                           kRaw, OwnerLane(), rig.region, 0, 4096);
  const auto retries = [] {
    return TroubleIn(HardwareCounters(TestPort().device->name(), TestPort().port))
        .retries.value_or(0);
  };
  const uint64_t before = retries();
  // By lane nobody answers any more.
  rig.Revoked({5, 1});
  raw.PostRead(raw.lane(), ReadKey(key)->address, ReadKey(key)->rkey, 0, 64);
  REQUIRE(raw.Next(&rig.pair) == IBV_WC_RETRY_EXC_ERR);
  // The kernel reads them anew some ms apart.
  REQUIRE(rig.pair.Until([&] { return retries() > before; }));
}

}  // namespace
}  // namespace verbena::fabric::verbs
