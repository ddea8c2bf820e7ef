// Links and lanes that end again and again, under load and at each stage of being made.
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

using contract::PlainDevice;

constexpr LinkId kLink{1}, kOther{2};
constexpr size_t kChunk = 32 << 10;

// READs of one lease that never cease: what ends is posted again, on the lane that there is.
class Flow {
 public:
  static constexpr uint32_t kReads = 12;

  explicit Flow(Rig& rig) : rig_(rig), into_(kReads, std::vector<std::byte>(kChunk)) {}
  void Use(const RemoteKey& key, uint32_t generation) {
    key_ = key;
    generation_ = generation;
  }
  // Looks at each READ; posts those again that have ended.
  void Turn() {
    for (uint32_t i = 0; i < kReads; ++i) {
      auto& answers = rig_.client_events().reads[ReadSlot{i, 1}.word()];
      if (posted_[i]) {
        if (answers.empty()) continue;
        REQUIRE(answers.size() == 1);
        if (answers[0] == Error::kOk) {
          ++good;
          REQUIRE(memcmp(into_[i].data(), rig_.region->base() + i * 16, kChunk) == 0);
        } else {
          ++bad;
          REQUIRE((answers[0] == Error::kLaneDown || answers[0] == Error::kLeaseLost));
        }
        answers.clear();
        posted_[i] = false;
      }
      REQUIRE(answers.empty());  // none is answered twice
      if (stopped) continue;
      memset(into_[i].data(), 0, kChunk);
      const LocalPiece piece{&PlainDevice(), into_[i].data(), kChunk};
      rig_.client().Read({i, 1}, kLink, ReaderLane(generation_), key_, i * 16, {&piece, 1});
      posted_[i] = true;
    }
  }
  bool idle() const {
    for (const bool posted : posted_) {
      if (posted) return false;
    }
    return true;
  }
  bool stopped = false;
  int good = 0, bad = 0;

 private:
  Rig& rig_;
  std::vector<std::vector<std::byte>> into_;
  std::array<bool, kReads> posted_{};
  RemoteKey key_;
  uint32_t generation_ = 1;
};

TEST_CASE("a lane is rebuilt again and again while READs flow", "[faults][load]") {
  VERBENA_EACH_RUNG(rung);
  constexpr uint32_t kGenerations = 30;
  Rig rig(rung);
  rig.Open(kLink);
  rig.Open(kOther);
  const Resources open = ResourcesNow();
  Flow flow(rig);
  for (uint32_t generation = 1; generation <= kGenerations; ++generation) {
    INFO("generation " << generation);
    if (generation > 1) rig.pair.OpenLane(kLink, 0, rig.pair.client(), generation);
    const LeaseSlot slot{generation, 1};
    flow.Use(rig.Lease(slot, kLink, 1 << 20, generation), generation);
    const int good = flow.good;
    REQUIRE(rig.pair.Until([&] {
      flow.Turn();
      return flow.good > good + static_cast<int>(generation % 5);
    }));
    // Either end, or both; or the lease's end by force, as by lane it costs the lane.
    switch (generation % 4) {
      case 0:
        ForceError(BulkPairOf(rig.client(), kLink));
        break;
      case 1:
        rig.server().Revoke(slot);
        break;
      default:
        break;
    }
    if (generation % 4 != 2) rig.client().BreakLane(kLink, ReaderLane(generation));
    rig.server().BreakLane(kLink, OwnerLane(generation));
    if (generation % 4 == 2) rig.client().BreakLane(kLink, ReaderLane(generation));
    if (generation % 4 != 1) rig.server().Release(slot);
    // The successor is not waited with.
  }
  flow.stopped = true;
  REQUIRE(rig.pair.Until([&] {
    flow.Turn();
    return flow.idle() && rig.client_events().lanes_down[kLink].size() == kGenerations &&
           rig.server_events().lanes_down[kLink].size() == kGenerations;
  }));
  for (uint32_t generation = 1; generation <= kGenerations; ++generation) {
    REQUIRE(rig.pair.Until([&] {
      return rig.server_events().revoked[LeaseSlot{generation, 1}.word()] == 1;
    }));
  }
  REQUIRE((flow.good > 0 && flow.bad > 0));
  REQUIRE(rig.client_events().lanes_down[kOther].empty());
  rig.Works(kOther);
  rig.pair.OpenLane(kLink, 0, rig.pair.client(), kGenerations + 1);
  rig.Works(kLink, kGenerations + 1);
  const Resources now = ResourcesNow();
  INFO("before " << open << ", after " << now);
  REQUIRE(now.pairs == open.pairs);
  REQUIRE(now.registrations == open.registrations);
}

TEST_CASE("links are made and ended many times, and nothing grows", "[faults][load][links]") {
  VERBENA_EACH_RUNG(rung);
  const char* const wanted = std::getenv("VERBENA_TEST_LINKS");
  const int links = wanted != nullptr ? atoi(wanted) : 60;
  Rig rig(rung);
  rig.Open(kOther);
  rig.Open(kLink);
  rig.Closed(kLink);
  const Resources before = ResourcesNow();
  for (int i = 0; i < links; ++i) {
    INFO("link " << i);
    rig.client_events().down[kLink].clear();
    rig.server_events().down[kLink].clear();
    rig.pair.Connect(kLink);
    if (i % 3 != 0) {
      rig.pair.OpenLane(kLink, 0, rig.pair.client());
      const RemoteKey key = rig.Lease({1, static_cast<uint32_t>(i)}, kLink, kChunk);
      std::vector<std::byte> to(kChunk);
      const ReadSlot slot{static_cast<uint32_t>(i), 2};
      rig.Read(slot, kLink, key, to.data(), kChunk);
      if (i % 3 == 1) REQUIRE(rig.Done(slot) == Error::kOk);
      rig.Closed(kLink);  // with the lease, and of every third with its READ
      if (i % 3 == 2) rig.Done(slot);
    } else {
      REQUIRE(contract::SendFrame(rig.client(), kLink, 100, 1));
      rig.Closed(kLink);
    }
  }
  rig.Works(kOther);
  const Resources after = ResourcesNow();
  INFO("before " << before << ", after " << after);
  REQUIRE(after.pairs == before.pairs);
  REQUIRE(after.registrations == before.registrations);
  REQUIRE(after.queues == before.queues);
  REQUIRE(after.windows <= before.windows + 64);  // a stock of them
}

TEST_CASE("a fabric that is destroyed with everything under way leaves nothing", "[faults][load]") {
  VERBENA_EACH_RUNG(rung);
  { Rig warm(rung); }
  const Resources before = ResourcesNow();
  const bool server_first = GENERATE(true, false);
  INFO((server_first ? "the owner" : "the reader") << " goes first");
  std::vector<std::byte> into(16 * kChunk);
  {
    Rig rig(rung);
    rig.Open(kLink);
    rig.Open(kOther);
    const RemoteKey key = rig.Lease({1, 1}, kLink, 1 << 20);
    for (uint32_t i = 0; i < 16; ++i) {
      rig.Read({i, 1}, kLink, key, into.data() + i * kChunk, kChunk);
    }
    for (uint32_t i = 2; i < 8; ++i) {
      rig.server().Lease({i, 1}, kLink, OwnerLane(), rig.region, rig.region->base(), 4096);
    }
    rig.server().Revoke({2, 1});
    for (uint32_t i = 0; i < 5; ++i) contract::SendFrame(rig.client(), kOther, 5000, i);
    rig.pair.OpenLane(kOther, 0, rig.pair.client(), 2);  // and a lane that nobody adopted yet
    if (server_first) {
      rig.server().Poll(rig.server_events());
      rig.pair.DropServer();
    } else {
      rig.client().Poll(rig.client_events());
      rig.pair.DropClient();
    }
    // Those at the other end hear of it.
    contract::Recorder& left = server_first ? rig.client_events() : rig.server_events();
    REQUIRE(
        rig.pair.Until([&] { return !left.down[kLink].empty() && !left.down[kOther].empty(); }));
    if (server_first) {
      for (uint32_t i = 0; i < 16; ++i) rig.Done({i, 1});
    }
    std::fill(into.begin(), into.end(), std::byte{0x55});
    rig.pair.Settle();
    REQUIRE(std::count(into.begin(), into.end(), std::byte{0x55}) ==
            static_cast<std::ptrdiff_t>(into.size()));
  }
  const Resources after = ResourcesNow();
  INFO("before " << before << ", after " << after);
  REQUIRE(after == before);
}

TEST_CASE("a link that is abandoned leaves nothing, whatever it had", "[faults][load]") {
  VERBENA_EACH_RUNG(rung);
  Rig rig(rung);
  rig.Open(kOther);
  const Resources before = ResourcesNow();
  VerbsFabric& fabric = rig.server();
  constexpr LinkId kGone{7};
  for (int stage = 0; stage < 5; ++stage) {
    INFO("stage " << stage);
    if (stage == 0) {  // prepared
      REQUIRE(fabric.Prepare(kGone, Side::kServer, {}).ok());
      fabric.Abandon(kGone);
    } else if (stage == 1) {  // the peer's half was no good: nothing is left to abandon
      REQUIRE(fabric.Prepare(kGone, Side::kServer, {}).ok());
      Sockets none;
      REQUIRE_FALSE(fabric.Complete(kGone, Offer{"nonsense", {}}, none).ok());
      fabric.Abandon(kGone);
    } else {  // completed; with frames; with a lane besides
      RawPeer raw(fabric, kGone, false);
      if (stage > 3) raw.OpenLane();
      if (stage > 2) {
        raw.PostFrame(100, 100);
        REQUIRE(raw.Next(&rig.pair) == IBV_WC_SUCCESS);
        rig.pair.Settle();
      }
      fabric.Abandon(kGone);
      rig.pair.Settle();
    }
    REQUIRE(rig.pair.Until([&] { return ResourcesNow() == before; }));
  }
  REQUIRE(rig.server_events().frames_of(kGone) == 0);
  REQUIRE(rig.server_events().down[kGone].empty());
  // Its number serves another.
  rig.Open(kGone);
  rig.Works(kOther);
}

// As where locked memory is short; descriptors can be taken away from one who is root, too.
TEST_CASE("a fabric that lacks any one thing is refused at once, and leaves nothing",
          "[faults][load]") {
  VerbsOptions options;
  options.port = TestPort();
  options.post_setup = [](absl::AnyInvocable<void() &&>) {};  // nothing registers with it
  // What is made once, for the process, is made.
  REQUIRE(VerbsFabric::Create(options).ok());
  const Resources before = ResourcesNow();
  rlimit limit{};
  REQUIRE(getrlimit(RLIMIT_NOFILE, &limit) == 0);
  const int next = dup(STDIN_FILENO);
  close(next);
  bool made = false;
  uint32_t refused = 0;
  for (uint32_t spare = 0; !made && spare < 20; ++spare) {
    rlimit less = limit;
    less.rlim_cur = static_cast<rlim_t>(next) + spare;
    REQUIRE(setrlimit(RLIMIT_NOFILE, &less) == 0);
    const absl::Status status = VerbsFabric::Create(options).status();
    REQUIRE(setrlimit(RLIMIT_NOFILE, &limit) == 0);
    INFO(spare << " descriptors: " << status);
    made = status.ok();
    if (!made) CHECK(absl::IsResourceExhausted(status));
    refused += made ? 0 : 1;
  }
  CHECK(made);
  CHECK(refused >= 3);
  CHECK(ResourcesNow() == before);
}

}  // namespace
}  // namespace verbena::fabric::verbs
