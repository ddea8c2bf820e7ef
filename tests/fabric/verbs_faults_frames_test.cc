// Senders that keep to nothing: frames that are none, more of them than the window, and sooner.
#include <arpa/inet.h>

#include <chrono>
#include <cstring>
#include <vector>

#include "rpc/base/slowdown.h"
#include "rpc/fabric/verbs/offer.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink{1}, kRaw{3};

const contract::Subject& OneRung() { return Rungs()[1]; }
const contract::Subject& WithoutSrq() {
  static const auto* const subject =
      new contract::Subject(contract::VerbsSubject({"without SRQ", Revocation::kLeaseMr, false}));
  return *subject;
}

// Closes a link whose frames exceed its window, as a session does.
void CloseBeyondWindow(Rig& rig, LinkId link) {
  rig.server_events().on_frame = [&rig, link, count = 0u](LinkId from, auto) mutable {
    if (from == link && ++count > rig.server().traits().window_slots) rig.server().Close(link);
  };
}

bool Down(Rig& rig, LinkId link) {
  return rig.pair.Until([&] { return !rig.server_events().down[link].empty(); });
}

// How many receives are posted on the server's SRQ: a peer sends until it is told that there is
// none. Its link is closed by whoever counts its frames. `meanwhile` runs when none is left.
uint32_t DrainedReceives(
    Rig& rig, LinkId link, absl::FunctionRef<void()> meanwhile = [] {}) {
  rig.rnr_expected = true;
  CloseBeyondWindow(rig, link);
  RawPeer raw(rig.server(), link);
  const uint64_t before = RnrEvents();
  for (int i = 0; i < 600; ++i) raw.PostFrame(64, 64);
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(20) * kSlowdown;
  while (RnrEvents() == before) REQUIRE(std::chrono::steady_clock::now() < end);
  // Sent before the one that was refused, and told so in order.
  uint32_t taken = 0;
  for (auto quiet = std::chrono::steady_clock::now();
       std::chrono::steady_clock::now() - quiet < std::chrono::milliseconds(200);) {
    const std::vector<ibv_wc_status> those = raw.Those();
    for (const ibv_wc_status status : those) REQUIRE(status == IBV_WC_SUCCESS);
    taken += static_cast<uint32_t>(those.size());
    if (!those.empty()) quiet = std::chrono::steady_clock::now();
  }
  meanwhile();
  REQUIRE(Down(rig, link));
  REQUIRE(rig.server_events().down[link].size() == 1);
  REQUIRE(rig.server_events().frames_of(link) == rig.server().traits().window_slots + 1);
  rig.server_events().on_frame = nullptr;
  return taken;
}

TEST_CASE("copied frames that find the send queue full leave later, in order, before the goodbye",
          "[faults][frames]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  constexpr uint32_t kFrames = limits::kVerbsControlWorkMax + 20;
  alignas(64) std::byte frame[ControlEnd::kCopyBytes] = {};
  const auto send = [&](uint32_t seed) {
    contract::Fill(frame + 2, 98, seed);
    rig.client().SendCopy(kLink, frame, 100);
  };
  const size_t before = rig.server_events().frames_of(kLink);
  for (uint32_t i = 0; i < kFrames; ++i) send(i);
  REQUIRE(rig.pair.Until([&] { return rig.server_events().frames_of(kLink) == before + kFrames; }));
  for (uint32_t i = kFrames; i < 2 * kFrames; ++i) send(i);
  rig.client().Close(kLink);
  REQUIRE(Down(rig, kLink));
  REQUIRE(rig.server_events().frames_of(kLink) == before + 2 * kFrames);
  for (uint32_t i = 0; i < 2 * kFrames; ++i) {
    REQUIRE(contract::FrameIs(rig.server_events().frames[kLink][before + i], 100, i));
  }
}

TEST_CASE("a peer that drains the receives ends its own link only", "[faults][frames]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  const size_t frames = rig.server_events().frames_of(kLink);
  const uint32_t posted = DrainedReceives(rig, LinkId{10}, [&] {
    // The honest wait, and go on.
    for (uint32_t i = 0; i < 5; ++i) REQUIRE(contract::SendFrame(rig.client(), kLink, 500, i));
  });
  REQUIRE(posted > 2 * rig.server().traits().window_slots);
  REQUIRE(rig.pair.Until([&] { return rig.server_events().frames_of(kLink) == frames + 5; }));
  rig.Works(kLink);
  // All of them are posted again.
  for (uint32_t i = 11; i < 14; ++i) {
    const LinkId link{i};
    REQUIRE(DrainedReceives(rig, link) == posted);
    rig.Works(kLink);
  }
  REQUIRE(rig.client_events().down[kLink].empty());
  REQUIRE(rig.server_events().down[kLink].empty());
}

TEST_CASE("what is no frame ends its link and no other, and keeps no receive", "[faults][frames]") {
  const bool srq = GENERATE(true, false);
  Rig rig(srq ? OneRung() : WithoutSrq());
  rig.Open(kLink);
  const uint32_t posted = srq ? DrainedReceives(rig, LinkId{10}) : 0;
  struct Case {
    uint32_t bytes;
    int said;
    bool immediate;
    uint32_t word;
    absl::StatusCode code;
  };
  constexpr auto kLoss = absl::StatusCode::kDataLoss, kGone = absl::StatusCode::kUnavailable;
  uint32_t next = 20;
  for (const Case c :
       {Case{0, 0, false, 0, kLoss}, Case{1, 1, false, 0, kLoss}, Case{7, 7, false, 0, kLoss},
        Case{8, 0, false, 0, kLoss}, Case{8, 9, false, 0, kLoss}, Case{100, 99, false, 0, kLoss},
        Case{8192, 8191, false, 0, kLoss}, Case{8192, 16384, false, 0, kLoss},
        Case{100, 100, true, 0x1234, kLoss}, Case{0, 0, true, 0x1234, kLoss},
        Case{8, 8, true, kByeWord, kLoss}, Case{0, 0, true, kByeWord, kGone},
        Case{8193, 8193, false, 0, kGone}, Case{65544, 8, false, 0, kGone}}) {
    INFO(c.bytes << " bytes that say " << c.said << ", immediate " << c.immediate << " " << c.word);
    const LinkId link{next++};
    RawPeer raw(rig.server(), link);
    raw.PostFrame(100, 100);
    raw.PostFrame(c.bytes, c.said, c.immediate, htonl(c.word));
    raw.PostFrame(100, 100);
    REQUIRE(Down(rig, link));
    const std::vector<absl::Status>& down = rig.server_events().down[link];
    INFO(down[0]);
    REQUIRE(down[0].code() == c.code);
    REQUIRE(down.size() == 1);
    // The frame before it, and nothing of it or after it.
    REQUIRE(rig.server_events().frames_of(link) == 1);
    REQUIRE(rig.server_events().frames[link][0].size() == 100);
  }
  rig.Works(kLink);
  REQUIRE(rig.server_events().down[kLink].empty());
  if (srq) REQUIRE(DrainedReceives(rig, LinkId{11}) == posted);
}

TEST_CASE("frames that come before their link starts wait for it, as many as its window holds",
          "[faults][frames]") {
  Rig rig(OneRung());
  rig.Open(kLink);
  const uint32_t window = rig.server().traits().window_slots;
  const uint32_t posted = DrainedReceives(rig, LinkId{10});
  const auto sent = [&](RawPeer& raw, uint32_t count) {
    for (uint32_t i = 0; i < count; ++i) raw.PostFrame(8 + i % 256, static_cast<int>(8 + i % 256));
    for (uint32_t i = 0; i < count; ++i) REQUIRE(raw.Next(&rig.pair) == IBV_WC_SUCCESS);
    rig.pair.Settle(std::chrono::milliseconds(50));
  };
  {  // The whole window.
    RawPeer raw(rig.server(), LinkId{20}, false);
    sent(raw, window);
    REQUIRE(rig.server_events().frames_of(LinkId{20}) == 0);
    rig.server().Start(LinkId{20});
    raw.PostFrame(1000, 1000);
    REQUIRE(rig.pair.Until([&] { return rig.server_events().frames_of(LinkId{20}) > window; }));
    for (uint32_t i = 0; i < window; ++i) {
      REQUIRE(rig.server_events().frames[LinkId{20}][i].size() == 8 + i);
    }
    rig.server().Close(LinkId{20});
    REQUIRE(Down(rig, LinkId{20}));
  }
  {  // Its last word too.
    RawPeer raw(rig.server(), LinkId{21}, false);
    sent(raw, 2);
    raw.PostFrame(0, 0, true, htonl(kByeWord));
    REQUIRE(raw.Next(&rig.pair) == IBV_WC_SUCCESS);
    rig.pair.Settle(std::chrono::milliseconds(50));
    rig.server().Start(LinkId{21});
    REQUIRE(Down(rig, LinkId{21}));
    REQUIRE(rig.server_events().frames_of(LinkId{21}) == 2);
    REQUIRE(absl::IsUnavailable(rig.server_events().down[LinkId{21}][0]));
  }
  {  // Far more than the pool has: the others do not notice, and the link ends when it starts.
    const uint64_t rnr = RnrEvents();
    RawPeer raw(rig.server(), LinkId{22}, false);
    for (int round = 0; round < 12; ++round) sent(raw, 50);
    rig.Works(kLink);
    REQUIRE(RnrEvents() == rnr);
    rig.server().Start(LinkId{22});
    REQUIRE(Down(rig, LinkId{22}));
    REQUIRE(rig.server_events().frames_of(LinkId{22}) == window);
    REQUIRE(absl::IsDataLoss(rig.server_events().down[LinkId{22}][0]));
  }
  {  // The link never starts.
    RawPeer raw(rig.server(), LinkId{23}, false);
    sent(raw, window);
    rig.server().Abandon(LinkId{23});
    rig.pair.Settle(std::chrono::milliseconds(50));
  }
  REQUIRE(DrainedReceives(rig, LinkId{11}) == posted);
  rig.Works(kLink);
}

}  // namespace
}  // namespace verbena::fabric::verbs
