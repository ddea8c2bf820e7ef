// A queue pair that is put into the error state from outside, at each end of each lane.
#include <cstring>
#include <vector>

#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink{1}, kOther{2};
constexpr size_t kChunk = 64 << 10;
constexpr uint32_t kReads = 8;

// READs under way of one lease, into a buffer each.
struct Reads {
  Reads(Rig& rig_in, const RemoteKey& key)
      : rig(rig_in), into(kReads, std::vector<std::byte>(kChunk)) {
    for (uint32_t i = 0; i < kReads; ++i) {
      rig.Read({i, 1}, kLink, key, into[i].data(), kChunk);
    }
    for (int i = 0; i < 3; ++i) rig.pair.PollOnce();
  }
  // Each answered once; those that say so are right; nothing is written afterwards.
  void End(bool link_down) {
    for (uint32_t i = 0; i < kReads; ++i) {
      const Error error = rig.Done({i, 1});
      INFO("READ " << i << " ended with " << static_cast<int>(error));
      REQUIRE((error == Error::kOk || error == Error::kLaneDown ||
               (link_down && error == Error::kLinkDown)));
      if (error == Error::kOk) REQUIRE(memcmp(into[i].data(), rig.region->base(), kChunk) == 0);
      std::fill(into[i].begin(), into[i].end(), std::byte{0x55});
    }
  }
  void StillEnded() {
    for (uint32_t i = 0; i < kReads; ++i) {
      REQUIRE(rig.Done({i, 1}) == rig.Done({i, 1}));
      REQUIRE(std::count(into[i].begin(), into[i].end(), std::byte{0x55}) == kChunk);
    }
  }
  Rig& rig;
  std::vector<std::vector<std::byte>> into;
};

// What a pair of fabrics with two such links leaves on the device while it lives, and after it.
void UseOnce(const contract::Subject& subject) {
  Rig rig(subject);
  rig.Open(kLink);
}

TEST_CASE("a bulk lane's end in the error state costs its READs and leases, and no more",
          "[faults][pairs]") {
  VERBENA_EACH_RUNG(rung);
  UseOnce(rung);
  const Resources before = ResourcesNow();
  const bool owner = GENERATE(false, true);
  INFO((owner ? "owner's end" : "reader's end"));
  {
    Rig rig(rung);
    rig.Open(kLink);
    rig.Open(kOther);
    const Resources open = ResourcesNow();
    const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
    Reads reads(rig, key);
    ForceError(BulkPairOf(owner ? rig.server() : rig.client(), kLink));
    reads.End(false);
    // The session at the reader's end tells the other, which breaks its own.
    rig.client().BreakLane(kLink, ReaderLane());
    rig.server().BreakLane(kLink, OwnerLane());
    auto& here = rig.client_events().lanes_down[kLink];
    auto& there = rig.server_events().lanes_down[kLink];
    REQUIRE(rig.pair.Until([&] { return !here.empty() && !there.empty(); }));
    reads.StillEnded();
    rig.Revoked({1, 1});
    rig.pair.OpenLane(kLink, 0, rig.pair.client(), 2);
    rig.Works(kLink, 2);
    rig.Works(kOther);
    REQUIRE(here == std::vector<Lane>{ReaderLane()});
    REQUIRE(there == std::vector<Lane>{OwnerLane()});
    REQUIRE(rig.client_events().down[kLink].empty());
    REQUIRE(rig.client_events().down[kOther].empty());
    const Resources rebuilt = ResourcesNow();
    INFO("with both links open " << open << ", with the lane rebuilt " << rebuilt);
    REQUIRE(rebuilt.pairs == open.pairs);
    REQUIRE(rebuilt.registrations == open.registrations);
    rig.Closed(kLink);
    rig.Works(kOther);
  }
  const Resources after = ResourcesNow();
  INFO("before " << before << ", after " << after);
  REQUIRE(after == before);
}

TEST_CASE("a control lane's end in the error state ends its link at both ends, and no other",
          "[faults][pairs]") {
  VERBENA_EACH_RUNG(rung);
  UseOnce(rung);
  const Resources before = ResourcesNow();
  const bool server = GENERATE(false, true);
  INFO((server ? "server's end" : "client's end"));
  {
    Rig rig(rung);
    rig.Open(kLink);
    rig.Open(kOther);
    const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
    Reads reads(rig, key);
    ForceError(ControlPairOf(server ? rig.server() : rig.client(), kLink));
    // Either learns of it when it has something to say.
    contract::SendFrame(rig.client(), kLink, 100, 1);
    contract::SendFrame(rig.server(), kLink, 100, 1);
    auto& here = rig.client_events().down[kLink];
    auto& there = rig.server_events().down[kLink];
    REQUIRE(rig.pair.Until([&] { return !here.empty() && !there.empty(); }));
    INFO(here[0] << "; " << there[0]);
    REQUIRE((absl::IsUnavailable(here[0]) && absl::IsUnavailable(there[0])));
    reads.End(true);
    rig.Works(kOther);
    reads.StillEnded();
    REQUIRE((here.size() == 1 && there.size() == 1));
    REQUIRE(rig.client_events().after_down + rig.server_events().after_down == 0);
    // Its number serves the next.
    here.clear();
    there.clear();
    rig.Open(kLink);
    rig.Closed(kLink);
    rig.Works(kOther);
  }
  const Resources after = ResourcesNow();
  INFO("before " << before << ", after " << after);
  REQUIRE(after == before);
}

TEST_CASE("a link whose every queue pair fails at once ends once", "[faults][pairs]") {
  VERBENA_EACH_RUNG(rung);
  Rig rig(rung);
  rig.Open(kLink);
  rig.Open(kOther);
  const RemoteKey key = rig.Lease({1, 1}, kLink, kChunk);
  Reads reads(rig, key);
  for (VerbsFabric* const fabric : {&rig.client(), &rig.server()}) {
    for (ibv_qp* const qp : fabric->QueuePairsOf(kLink)) ForceError(qp);
  }
  rig.client().Close(kLink);
  rig.server().Close(kLink);
  reads.End(true);
  rig.Works(kOther);
  REQUIRE(rig.pair.Until([&] {
    return !rig.client_events().down[kLink].empty() && !rig.server_events().down[kLink].empty();
  }));
  reads.StillEnded();
  REQUIRE(rig.client_events().down[kLink].size() == 1);
  REQUIRE(rig.server_events().down[kLink].size() == 1);
}

}  // namespace
}  // namespace verbena::fabric::verbs
