// shm with device memory that cannot be mapped by its reader: by way of stages.
#include <poll.h>

#include <thread>
#include <vector>

#include "rpc/base/slowdown.h"
#include "rpc/memory/fake_stream.h"
#include "rpc/memory/known_regions.h"
#include "tests/contract/fabric_contract.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_subject.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kBytes = (20 << 20) + 77;

struct Stages {
  explicit Stages(bool export_refused = true) {
    pattern.resize(kBytes);
    Fill(pattern.data(), kBytes, 5);
    source = MakeFake(from, kBytes);
    target = MakeFake(to, kBytes);
    from.Write(source->base(), pattern.data(), kBytes);
    const absl::Status why = absl::FailedPreconditionError("it cannot be shared");
    if (export_refused) from.RefuseExports(why);
    if (!export_refused) to.RefuseImports(why);
    pair.Connect(kLink);
    key =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, source, 0, kBytes);
  }
  ~Stages() {
    for (memory::FakeDevice* fake : {&from, &to}) {
      fake->LetCopies(-1);
      fake->RefuseExports(absl::OkStatus());
      fake->RefuseImports(absl::OkStatus());
    }
  }
  void Read(uint32_t slot, uint64_t offset, size_t bytes, Path path = Path::kNone,
            uint32_t generation = 1) {
    const fabric::LocalPiece piece{&to, target->base() + offset, bytes, {}, path};
    pair.client().Read({slot, 1}, kLink, {0, LaneRole::kReader, generation}, key, offset,
                       {&piece, 1});
  }
  bool Ended(uint32_t slot) { return !pair.client_events.reads[ReadSlot{slot, 1}.word()].empty(); }
  Error Wait(uint32_t slot) {
    REQUIRE(pair.Until([&] { return Ended(slot); }));
    return pair.client_events.reads[ReadSlot{slot, 1}.word()][0];
  }
  // The owner alone works: one of eight stages is filled.
  void FillOne() {
    from.LetCopies(1);
    // It copies a part of a stage in each look.
    for (int i = 0; i < 64 || from.waiting() == 8; ++i) pair.server().Poll(pair.server_events);
  }
  bool Arrived() {
    std::vector<std::byte> seen(kBytes);
    to.Read(seen.data(), target->base(), kBytes);
    return seen == pattern;
  }

  memory::FakeDevice& from = memory::FakeDevice::Install(5);
  memory::FakeDevice& to = memory::FakeDevice::Install(6);
  const Subject subject = ShmSubject();
  Pair pair{subject};
  std::vector<std::byte> pattern;
  std::shared_ptr<FakeRegion> source, target;
  fabric::RemoteKey key;
};

TEST_CASE("device memory that its owner cannot export, or its reader cannot map, is staged",
          "[shm][device]") {
  Stages s(GENERATE(true, false));
  for (uint32_t round = 0; round < 2; ++round) {
    s.to.Write(s.target->base(), std::vector<std::byte>(kBytes).data(), kBytes);
    s.Read(round, 0, kBytes);
    REQUIRE(s.Wait(round) == Error::kOk);
    CHECK(s.pair.client_events.paths[ReadSlot{round, 1}.word()] == Path::kPinnedStaging);
    CHECK(s.Arrived());
  }
  // Two at a time, and parts.
  s.to.Write(s.target->base(), std::vector<std::byte>(kBytes).data(), kBytes);
  s.Read(10, 0, 12345);
  s.Read(11, 12345, kBytes - 12345);
  CHECK(s.Wait(10) == Error::kOk);
  CHECK(s.Wait(11) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("staged device memory is read to the host", "[shm][device]") {
  Stages s;
  std::vector<std::byte> seen(kBytes);
  const fabric::LocalPiece pieces[] = {
      {&memory::HostDevice(), seen.data(), 5000000},
      {&memory::HostDevice(), seen.data() + 5000000, kBytes - 5000000}};
  s.pair.client().Read({1, 1}, kLink, kReader, s.key, 0, pieces);
  REQUIRE(s.Wait(1) == Error::kOk);
  CHECK(seen == s.pattern);
}

TEST_CASE("a READ that requires another path is not staged", "[shm][device][path]") {
  Stages s(GENERATE(true, false));
  s.Read(1, 0, kBytes, Path::kPeerIpc);
  CHECK(s.Wait(1) == Error::kUnsupported);
  CHECK(s.pair.client_events.paths[ReadSlot{1, 1}.word()] == Path::kPinnedStaging);
  s.Read(2, 0, kBytes, Path::kPinnedStaging);
  CHECK(s.Wait(2) == Error::kOk);
}

TEST_CASE("a READ in the order of a stream is not staged", "[shm][device][order]") {
  Stages s;
  memory::FakeStream stream;
  stream.Launch([] {});
  const fabric::LocalPiece piece{&s.to, s.target->base(), kBytes, {&stream}};
  s.pair.client().Read({1, 1}, kLink, kReader, s.key, 0, {&piece, 1});
  CHECK(s.Wait(1) == Error::kUnsupported);
  CHECK(s.pair.client_events.paths[ReadSlot{1, 1}.word()] == Path::kPinnedStaging);
  CHECK(s.from.waiting() == 0);
}

TEST_CASE("the owner fills stages while the reader empties others", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.to.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.from.LetCopies(5);
  REQUIRE(s.pair.Until([&] { return s.to.waiting() == 5; }));
  CHECK(s.from.waiting() == 3);
  // Those that are emptied are filled again.
  s.to.LetCopies(2);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 5; }));
  s.from.LetCopies(-1);
  s.to.LetCopies(-1);
  REQUIRE(s.Wait(1) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("stages that are free go to small READs, then to whoever came first", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  s.Read(2, 0, kBytes);
  s.Read(3, 0, 4096);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.pair.Settle();
  s.from.LetCopies(-1);
  CHECK(s.Wait(3) == Error::kOk);
  CHECK_FALSE(s.Ended(1));
  CHECK(s.Wait(1) == Error::kOk);
  CHECK_FALSE(s.Ended(2));
  CHECK(s.Wait(2) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("a large staged READ ends before others that go on coming after it", "[shm][device]") {
  constexpr size_t kOthersBytes = 2 << 20;  // two of eight stages
  constexpr uint32_t kOthersMax = 100;
  Stages s;
  s.Read(1, 0, kBytes);
  uint32_t others = 0;
  REQUIRE(s.pair.Until([&] {
    if (!s.Ended(1) && others < kOthersMax) s.Read(10 + others++, 0, kOthersBytes);
    return s.Ended(1);
  }));
  uint32_t ended = 0;
  for (uint32_t i = 0; i < others; ++i) ended += s.Ended(10 + i) ? 1 : 0;
  CHECK(ended <= 4);  // those that had the other stages when it had its last one
  for (uint32_t i = 0; i < others; ++i) CHECK(s.Wait(10 + i) == Error::kOk);
}

TEST_CASE("a revocation waits for copies to stages, and the READ ends with it", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.pair.server().Revoke({1, 1});
  s.pair.Settle();
  CHECK(s.pair.server_events.revoked.empty());
  s.from.LetCopies(-1);
  REQUIRE(s.pair.Until([&] { return s.pair.server_events.revoked.size() == 1; }));
  CHECK(s.Wait(1) == Error::kLeaseLost);
}

TEST_CASE("a lane breaks under a staged READ, and the next one is served", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.pair.client().BreakLane(kLink, kReader);
  CHECK(s.Wait(1) == Error::kLaneDown);
  REQUIRE(s.pair.Until([&] { return s.pair.client_events.lanes_down[kLink].size() == 1; }));
  s.Read(2, 0, kBytes, Path::kNone, 2);
  s.pair.Settle();
  s.from.LetCopies(-1);
  REQUIRE(s.Wait(2) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("a link ends under a staged READ when copies have ended", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.pair.server().Close(kLink);
  CHECK(s.Wait(1) == Error::kLinkDown);
  REQUIRE(s.pair.Until([&] { return s.pair.client_events.down[kLink].size() == 1; }));
  CHECK(s.pair.server_events.down[kLink].empty());
  s.from.LetCopies(-1);
  REQUIRE(s.pair.Until([&] { return s.pair.server_events.down[kLink].size() == 1; }));
}

TEST_CASE("an owner that dies under a staged READ ends it", "[shm][device]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  s.pair.DropServer();
  CHECK(s.Wait(1) == Error::kLinkDown);
  REQUIRE(s.pair.Until([&] { return s.pair.client_events.down[kLink].size() == 1; }));
}

// What a reactor asks before it sleeps.
bool Sleeps(fabric::Fabric& fabric) { return !fabric.HasLater() && !fabric.Arm(); }
bool Rings(fabric::Fabric& fabric, int time_ms) {
  pollfd event{fabric.fd(), POLLIN, 0};
  return ::poll(&event, 1, time_ms) == 1;
}
void Wake(fabric::Fabric& fabric, Recorder& events) {
  // Who has not slept leaves an old ring where it is.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  fabric.Disarm();
  fabric.Poll(events);
}
// Asleep, and nothing rings.
bool FallsAsleep(fabric::Fabric& fabric, Recorder& events) {
  if (Sleeps(fabric) && !Rings(fabric, 0)) return true;
  Wake(fabric, events);
  return false;
}

TEST_CASE("a reader sleeps while its owner fills stages, and is woken by an answer",
          "[shm][device][sleep]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  // Its link is polled, or long cold.
  if (GENERATE(false, true)) s.pair.Settle();
  REQUIRE(s.pair.Until([&] { return FallsAsleep(s.pair.client(), s.pair.client_events); }));
  s.to.LetCopies(0);
  s.FillOne();
  REQUIRE(Rings(s.pair.client(), 10'000 * kSlowdown));
  Wake(s.pair.client(), s.pair.client_events);
  // A job maps the stages first.
  REQUIRE(s.pair.Until([&] { return s.to.waiting() > 0; }));
  s.to.LetCopies(-1);
  s.from.LetCopies(-1);
  REQUIRE(s.Wait(1) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("a reader does not sleep once an answer has come, or its owner is gone",
          "[shm][device][sleep]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  SECTION("an answer") {
    s.FillOne();
    CHECK_FALSE(Sleeps(s.pair.client()));
    s.pair.client().Disarm();
    s.from.LetCopies(-1);
    CHECK(s.Wait(1) == Error::kOk);
  }
  SECTION("it closes the link") {
    s.pair.server().Close(kLink);
    CHECK_FALSE(Sleeps(s.pair.client()));
    s.pair.client().Disarm();
    CHECK(s.Wait(1) == Error::kLinkDown);
  }
  SECTION("its lane breaks here") {
    s.pair.client().BreakLane(kLink, kReader);
    CHECK_FALSE(Sleeps(s.pair.client()));
    s.pair.client().Disarm();
    CHECK(s.Wait(1) == Error::kLaneDown);
  }
}

TEST_CASE("a READ that waits for another's stages is woken when one is free",
          "[shm][device][sleep]") {
  Stages s;
  s.from.LetCopies(0);
  s.Read(1, 0, kBytes);
  REQUIRE(s.pair.Until([&] { return s.from.waiting() == 8; }));
  // All stages are being filled for a READ that is no more.
  s.pair.client().BreakLane(kLink, kReader);
  CHECK(s.Wait(1) == Error::kLaneDown);
  s.Read(2, 0, kBytes, Path::kNone, 2);
  s.pair.Settle();
  REQUIRE(s.pair.Until([&] { return FallsAsleep(s.pair.client(), s.pair.client_events); }));
  s.FillOne();
  REQUIRE(Rings(s.pair.client(), 10'000 * kSlowdown));
  Wake(s.pair.client(), s.pair.client_events);
  // What it asks for takes that stage's place.
  while (s.from.waiting() == 7) s.pair.server().Poll(s.pair.server_events);
  s.from.LetCopies(-1);
  REQUIRE(s.Wait(2) == Error::kOk);
  CHECK(s.Arrived());
}

TEST_CASE("a copy to a stage that faults is that READ's", "[shm][device]") {
  Stages s;
  const absl::Status refusal = absl::FailedPreconditionError("it cannot be shared");
  // Freed, and allocated again under another number, after it was leased.
  auto extent = s.from.Allocate(4096);
  REQUIRE(extent.ok());
  const auto region =
      std::make_shared<memory::Region>(s.from, *extent, memory::RegionKind::kForeign, -1, 0);
  s.key = LeaseNow(s.pair, s.pair.server(), s.pair.server_events, {2, 1}, kLink, kOwner, region, 0,
                   4096);
  s.Read(1, 0, 4096);
  CHECK(s.Wait(1) == Error::kOk);
  s.from.Free(*extent);
  s.Read(2, 0, 4096);
  CHECK(s.Wait(2) == Error::kFault);
}

}  // namespace
}  // namespace verbena::contract
