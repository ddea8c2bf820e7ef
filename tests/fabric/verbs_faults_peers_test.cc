// Peers that say the right words and do not mean them.
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <memory>
#include <vector>

#include "absl/strings/match.h"
#include "rpc/base/limits.h"
#include "rpc/base/log.h"
#include "rpc/base/slowdown.h"
#include "rpc/fabric/verbs/gid_choice.h"
#include "rpc/fabric/verbs/offer.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink{1}, kRaw{9};

const contract::Subject& OneRung() { return Rungs()[1]; }

TEST_CASE("peers that take no frames do not keep the others from sending", "[faults][peers]") {
  Rig rig(OneRung());
  rig.rnr_expected = true;
  rig.Open(kLink);
  // Each lets a window of frames wait; together that is all there are.
  const uint32_t window = rig.server().traits().window_slots;
  std::vector<std::unique_ptr<RawPeer>> deaf;
  for (uint32_t i = 0; i < limits::kVerbsSendBuffers / window; ++i) {
    const LinkId link{10 + i};
    deaf.push_back(std::make_unique<RawPeer>(rig.server(), link, true, 0));
    for (uint32_t k = 0; k < window; ++k) {
      REQUIRE(contract::SendFrame(rig.server(), link, 1000, k));
    }
    rig.pair.PollOnce();
  }
  REQUIRE(!contract::SendFrame(rig.server(), kLink, 1000, 1));
  const size_t frames = rig.client_events().frames_of(kLink);
  // It is not asked again before it is told.
  const int sendable = rig.server_events().sendable[kLink];
  REQUIRE(rig.pair.Until([&] { return rig.server_events().sendable[kLink] > sendable; }));
  REQUIRE(contract::SendFrame(rig.server(), kLink, 1000, 1));
  REQUIRE(rig.pair.Until([&] { return rig.client_events().frames_of(kLink) > frames; }));
  REQUIRE(rig.client_events().down[kLink].empty());
  REQUIRE(rig.server_events().down[kLink].empty());
  for (uint32_t i = 0; i < deaf.size(); ++i) {
    const std::vector<absl::Status>& down = rig.server_events().down[LinkId{10 + i}];
    REQUIRE(rig.pair.Until([&] { return !down.empty(); }));
    INFO(down[0]);
    CHECK(absl::IsUnavailable(down[0]));
    CHECK(absl::StrContains(down[0].message(), "has not taken 16 frames"));
  }
  rig.Works(kLink);
}

TEST_CASE("peers that take no frames, and whose buffers nobody wants, keep their links",
          "[faults][peers]") {
  Rig rig(OneRung());
  rig.rnr_expected = true;
  rig.Open(kLink);
  RawPeer deaf(rig.server(), kRaw, true, 0);
  for (uint32_t k = 0; k < 4; ++k) REQUIRE(contract::SendFrame(rig.server(), kRaw, 1000, k));
  rig.pair.Settle(std::chrono::milliseconds(1500) * kSlowdown);
  rig.Works(kLink);
  CHECK(rig.server_events().down[kRaw].empty());
}

// Offered to itself, which no session does; and each before its predecessor broke.
TEST_CASE("ends of lanes that are offered one after the other do not gather", "[faults][peers]") {
  const bool reader = GENERATE(true, false);
  INFO("reader " << reader);
  Rig rig(OneRung());
  rig.Open(kLink);
  VerbsFabric& fabric = rig.server();
  const int before = ResourcesNow().pairs;
  for (uint32_t generation = 2; generation <= 12; ++generation) {
    const Lane lane{0, reader ? LaneRole::kReader : LaneRole::kOwner, generation};
    absl::StatusOr<Offer> offered = fabric.PrepareLane(kLink, lane);
    REQUIRE(offered.ok());
    absl::StatusOr<LaneOffer> offer = ParseLaneOffer(offered->blob);
    REQUIRE(offer.ok());
    offer->end.read_depth_out = offer->end.read_depth_in = 16;
    REQUIRE(fabric.CompleteLane(kLink, lane, Offer{LaneOfferBlob(*offer), {}}).ok());
    rig.pair.PollOnce();
  }
  REQUIRE(rig.pair.Until([&] { return ResourcesNow().pairs <= before + 1; }));
  rig.Closed(kLink);
}

TEST_CASE("a lane whose other end answers or has no READs is refused", "[faults][peers]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  VerbsFabric& fabric = rig.server();
  const auto completed = [&](Lane lane, uint8_t depth_out, uint8_t depth_in) {
    absl::StatusOr<Offer> offered = fabric.PrepareLane(kLink, lane);
    REQUIRE(offered.ok());
    absl::StatusOr<LaneOffer> offer = ParseLaneOffer(offered->blob);
    REQUIRE(offer.ok());
    offer->end.read_depth_out = depth_out;
    offer->end.read_depth_in = depth_in;
    return fabric.CompleteLane(kLink, lane, Offer{LaneOfferBlob(*offer), {}});
  };
  const absl::Status no_answers = completed(ReaderLane(2), 16, 0);
  CHECK(absl::IsInvalidArgument(no_answers));
  CHECK(no_answers.message() == "verbs: an offer of a lane whose end answers 0 READs");
  const absl::Status no_reads = completed(OwnerLane(2), 0, 16);
  CHECK(absl::IsInvalidArgument(no_reads));
  CHECK(no_reads.message() == "verbs: an offer of a lane whose end has 0 READs");
  CHECK(completed(ReaderLane(3), 0, 255).ok());
  CHECK(completed(OwnerLane(3), 255, 0).ok());
}

TEST_CASE("a link to an address of many ports, or of none, is refused", "[faults][peers]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  VerbsFabric& fabric = rig.server();
  const Resources before = ResourcesNow();
  const auto refusal = [&](std::array<uint8_t, 4> ipv4) {
    absl::StatusOr<Offer> offered = fabric.Prepare(kRaw, Side::kServer, {});
    REQUIRE(offered.ok());
    absl::StatusOr<LinkOffer> offer = ParseLinkOffer(offered->blob);
    REQUIRE(offer.ok());
    if (!IsIpv4(offer->end.gid)) return absl::InvalidArgumentError("no IPv4 here: broadcast");
    std::copy(ipv4.begin(), ipv4.end(), offer->end.gid.begin() + 12);
    Sockets none;
    return fabric.Complete(kRaw, Offer{LinkOfferBlob(*offer), {}}, none);
  };
  for (const std::array<uint8_t, 4> ipv4 : {std::array<uint8_t, 4>{224, 0, 0, 1},
                                            {255, 255, 255, 255},
                                            {127, 255, 255, 255},
                                            {0, 0, 0, 0}}) {
    const absl::Status status = refusal(ipv4);
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
  }
  // Of its own subnet, as guests have it.
  const PortAddress port = TestPort();
  const uint8_t* const own = port.gid.raw + 12;
  if (own[0] == 10 && own[1] == 77) {
    const absl::Status status = refusal({10, 77, own[2], 255});
    INFO(status);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), "broadcast"));
    const absl::Status nobody = refusal({10, 77, own[2], 99});
    INFO(nobody);
    CHECK(absl::IsUnavailable(nobody));
  }
  CHECK(ResourcesNow() == before);
  rig.Works(kLink);
}

// As where locked memory is short, of which a peer would hear the log say as often as it asks.
TEST_CASE("what a peer can have refused again and again is logged once a second",
          "[faults][peers]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  const RemoteKey key = rig.Lease({500, 1}, kLink, 4096);
  void* const nothing = mmap(nullptr, 4096, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  REQUIRE(nothing != MAP_FAILED);
  static std::atomic<int> lines;
  lines = 0;
  SetLogSink([](LogLevel, absl::string_view line) {
    if (absl::StrContains(line, "the destination of a READ")) ++lines;
  });
  const auto start = std::chrono::steady_clock::now();
  for (uint32_t i = 0; i < 50; ++i) {
    const ReadSlot slot{100 + i, 1};
    rig.Read(slot, kLink, key, static_cast<std::byte*>(nothing), 4096);
    CHECK(rig.Done(slot) == Error::kFault);
  }
  const auto took = std::chrono::steady_clock::now() - start;
  SetLogSink({});
  CHECK(lines >= 1);
  CHECK(lines <= 1 + took / std::chrono::seconds(1));
  rig.Works(kLink);
  munmap(nothing, 4096);
}

}  // namespace
}  // namespace verbena::fabric::verbs
