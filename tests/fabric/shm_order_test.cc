// shm between devices, in the order of a stream: told when the copy stands in the stream, and the
// lease is held until it has ended.
#include <poll.h>

#include <atomic>
#include <thread>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "rpc/base/log.h"
#include "rpc/memory/fake_stream.h"
#include "tests/contract/fabric_contract.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_subject.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kBytes = 4096;

struct Ordered {
  explicit Ordered(Subject shm = ShmThatWaits(kLongNs)) : subject(std::move(shm)) {
    pattern.resize(kBytes);
    Fill(pattern.data(), kBytes, 5);
    from.Write(source->base(), pattern.data(), kBytes);
    pair.Connect(kLink);
    key =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, source, 0, kBytes);
    stream.Launch([] {});
  }
  void Read(uint32_t slot) {
    const fabric::LocalPiece piece{&to, target->base(), kBytes, {&stream}};
    pair.client().Read({slot, 1}, kLink, kReader, key, 0, {&piece, 1});
  }
  bool Told(uint32_t slot) { return pair.client_events.ordered[ReadSlot{slot, 1}.word()] == 1; }
  bool Ended(uint32_t slot) {
    const auto& reads = pair.client_events.reads[ReadSlot{slot, 1}.word()];
    return reads.size() == 1 && reads[0] == Error::kOk;
  }
  bool Arrived() {
    std::vector<std::byte> seen(kBytes);
    to.Read(seen.data(), target->base(), kBytes);
    return seen == pattern;
  }

  memory::FakeDevice& from = memory::FakeDevice::Install(7);
  memory::FakeDevice& to = memory::FakeDevice::Install(8);
  memory::FakeStream stream;
  const Subject subject;
  std::shared_ptr<FakeRegion> source = MakeFake(from, kBytes), target = MakeFake(to, kBytes);
  std::vector<std::byte> pattern;
  Pair pair{subject};
  fabric::RemoteKey key;
};

TEST_CASE("a READ is told when it stands in its stream, and done when it has ended",
          "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  CHECK(o.pair.client_events.paths[ReadSlot{1, 1}.word()] == Path::kPeerIpc);
  CHECK_FALSE(o.Ended(1));
  CHECK_FALSE(o.Arrived());
  bool arrived = false;
  o.stream.Launch([&] { arrived = o.Arrived(); });  // what its user queues next
  o.stream.Finish(2);
  REQUIRE(o.pair.Until([&] { return o.Ended(1); }));
  CHECK(arrived);
}

TEST_CASE("a revocation waits for a copy that stands in a stream", "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  o.pair.server().Revoke({1, 1});
  o.pair.Settle();
  CHECK(o.pair.server_events.revoked.empty());
  // Another is refused: it may not begin any more.
  o.Read(2);
  REQUIRE(o.pair.Until([&] { return o.pair.client_events.reads.size() == 1; }));
  CHECK(o.pair.client_events.reads[ReadSlot{2, 1}.word()][0] == Error::kLeaseLost);
  o.stream.Finish();
  REQUIRE(o.pair.Until([&] { return !o.pair.server_events.revoked.empty(); }));
  REQUIRE(o.pair.Until([&] { return o.Ended(1); }));
  CHECK(o.Arrived());
}

TEST_CASE("others begin while copies stand in streams, and none that ends is forgotten",
          "[shm][device][order]") {
  Ordered o;
  constexpr uint32_t kStand = 32;  // of one link at once
  for (uint32_t i = 0; i < kStand + 3; ++i) o.Read(i);
  REQUIRE(o.pair.Until([&] { return o.Told(kStand - 1); }));
  // For the rest there is no room now.
  REQUIRE(o.pair.Until([&] { return o.pair.client_events.reads.size() == 3; }));
  for (uint32_t i = kStand; i < kStand + 3; ++i) {
    CHECK_FALSE(o.Told(i));
    CHECK(o.pair.client_events.reads[ReadSlot{i, 1}.word()][0] == Error::kNoMemory);
    CHECK(o.pair.client_events.paths[ReadSlot{i, 1}.word()] == Path::kPeerIpc);
  }
  // What has no order, or another's, does not wait.
  const fabric::LocalPiece piece{&o.to, o.target->base(), kBytes};
  o.pair.client().Read({100, 1}, kLink, kReader, o.key, 0, {&piece, 1});
  REQUIRE(o.pair.Until([&] { return o.Ended(100); }));
  o.stream.Finish(100);
  REQUIRE(o.pair.Until([&] { return o.Ended(kStand - 1); }));
  for (uint32_t i = 0; i < kStand; ++i) CHECK(o.Ended(i));
  o.Read(50);
  REQUIRE(o.pair.Until([&] { return o.Ended(50); }));
  o.pair.server().Revoke({1, 1});
  REQUIRE(o.pair.Until([&] { return !o.pair.server_events.revoked.empty(); }));
}

TEST_CASE("only so many streams have copies at once", "[shm][device][order]") {
  Ordered o;
  constexpr uint32_t kStreams = 8;
  std::vector<memory::FakeStream> others(kStreams);
  const auto read = [&](uint32_t i) {
    others[i].Launch([] {});
    const fabric::LocalPiece piece{&o.to, o.target->base(), kBytes, {&others[i]}};
    o.pair.client().Read({i, 1}, kLink, kReader, o.key, 0, {&piece, 1});
  };
  for (uint32_t i = 0; i < kStreams; ++i) read(i);
  REQUIRE(o.pair.Until([&] { return o.Told(kStreams - 1); }));
  o.Read(20);
  REQUIRE(o.pair.Until([&] { return !o.pair.client_events.reads.empty(); }));
  CHECK(o.pair.client_events.reads[ReadSlot{20, 1}.word()][0] == Error::kNoMemory);
  // The last to come is the first to end.
  others[kStreams - 1].Finish();
  REQUIRE(o.pair.Until([&] { return o.Ended(kStreams - 1); }));
  o.Read(21);
  REQUIRE(o.pair.Until([&] { return o.Told(21); }));
  o.stream.Finish(10);
  REQUIRE(o.pair.Until([&] { return o.Ended(21); }));
  for (uint32_t i = 0; i + 1 < kStreams; ++i) CHECK_FALSE(o.Ended(i));
  for (memory::FakeStream& other : others) other.Finish();
  REQUIRE(o.pair.Until([&] { return o.Ended(0); }));
}

TEST_CASE("a lane breaks under copies that stand in streams, and comes back",
          "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  o.pair.client().BreakLane(kLink, kReader);
  REQUIRE(o.pair.Until([&] { return o.pair.client_events.lanes_down[kLink].size() == 1; }));
  CHECK_FALSE(o.Ended(1));
  o.stream.Finish();
  REQUIRE(o.pair.Until([&] { return o.Ended(1); }));
  CHECK(o.Arrived());
}

TEST_CASE("a link whose stream still copies ends when that has ended", "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  o.pair.server().Close(kLink);
  o.pair.Settle();
  CHECK(o.pair.server_events.down[kLink].empty());
  CHECK(o.pair.client_events.down[kLink].empty());
  // Nor is what it copies from given back before.
  o.pair.server().Revoke({1, 1});
  o.pair.Settle();
  CHECK(o.pair.server_events.revoked.empty());
  o.stream.Finish();
  REQUIRE(o.pair.Until([&] {
    return o.pair.server_events.down[kLink].size() == 1 &&
           o.pair.client_events.down[kLink].size() == 1;
  }));
}

TEST_CASE("a READ under which its owner closes the link is not told that its lease was lost",
          "[shm][device]") {
  Ordered o;
  o.to.LetCopies(0);
  const fabric::LocalPiece piece{&o.to, o.target->base(), kBytes};
  o.pair.client().Read({1, 1}, kLink, kReader, o.key, 0, {&piece, 1});
  REQUIRE(o.pair.Until([&] { return o.to.waiting() == 1; }));
  o.pair.server().Close(kLink);
  o.to.LetCopies(-1);
  REQUIRE(o.pair.Until([&] { return !o.pair.client_events.reads.empty(); }));
  CHECK(o.pair.client_events.reads[ReadSlot{1, 1}.word()][0] == Error::kLinkDown);
}

TEST_CASE("the lease of a reader that died is held no more", "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  o.pair.server().Revoke({1, 1});
  o.pair.Settle();
  CHECK(o.pair.server_events.revoked.empty());
  o.pair.DropClient();
  REQUIRE(o.pair.Until([&] {
    return !o.pair.server_events.revoked.empty() || !o.pair.server_events.down[kLink].empty();
  }));
}

// A lease that was revoked under a copy in its peer's stream, which has not moved for long enough.
struct Revoked : Ordered {
  Revoked() : Ordered(ShmThatWaits(1'000'000, 1'000'000)) {
    Read(1);
    REQUIRE(pair.Until([&] { return Told(1); }));
    pair.server().Revoke({1, 1});
    REQUIRE(pair.Until([&] { return pair.server_events.revoked[LeaseSlot{1, 1}.word()] == 1; }));
    // Its owner lets go of what was leased.
    kept = source;
    source.reset();
    CHECK_FALSE(kept.expired());
  }
  void Finish() {
    stream.Finish(2);
    REQUIRE(pair.Until([&] { return Ended(1); }));
    CHECK(Arrived());
    CHECK(pair.Until([&] { return kept.expired(); }));
    CHECK(pair.server_events.revoked[LeaseSlot{1, 1}.word()] == 1);
  }
  std::weak_ptr<FakeRegion> kept;
};

TEST_CASE("a revocation does not wait for a stream that stands still, and what that reads is kept",
          "[shm][device][order][quarantine]") {
  Revoked o;
  // The link goes on, with the place in the table that the lease had.
  auto other = MakeFake(o.from, kBytes);
  o.from.Write(other->base(), o.pattern.data(), kBytes);
  o.key = LeaseNow(o.pair, o.pair.server(), o.pair.server_events, {2, 1}, kLink, kOwner, other, 0,
                   kBytes);
  o.pair.server().Revoke({2, 1});
  CHECK(o.pair.Until([&] { return o.pair.server_events.revoked[LeaseSlot{2, 1}.word()] == 1; }));
  o.Read(2);
  REQUIRE(o.pair.Until([&] { return !o.pair.client_events.reads.empty(); }));
  CHECK(o.pair.client_events.reads[ReadSlot{2, 1}.word()][0] == Error::kLeaseLost);
  o.pair.Settle();
  CHECK_FALSE(o.kept.expired());
  o.Finish();
}

TEST_CASE("of a peer whose streams stand still one line is said, however many leases they hold",
          "[shm][device][order][quarantine]") {
  static std::atomic<int> lines{0};
  lines = 0;
  SetLogSink([](LogLevel, absl::string_view line) { lines += absl::StrContains(line, "is kept"); });
  const absl::Cleanup restore = [] { SetLogSink({}); };
  Ordered o(ShmThatWaits(kLongNs, 1'000'000));
  o.Read(1);
  for (uint32_t i = 2; i < 6; ++i) {
    o.key = LeaseNow(o.pair, o.pair.server(), o.pair.server_events, {i, 1}, kLink, kOwner, o.source,
                     0, kBytes);
    o.Read(i);
  }
  REQUIRE(o.pair.Until([&] { return o.Told(5); }));
  for (uint32_t i = 1; i < 6; ++i) {
    o.pair.server().Revoke({i, 1});
    REQUIRE(o.pair.Until([&] { return o.pair.server_events.revoked.size() == i; }));
  }
  CHECK(lines == 1);
  o.stream.Finish(6);
  REQUIRE(o.pair.Until([&] { return o.Ended(5); }));
}

TEST_CASE("what a stream reads of a lease that was revoked is kept beyond its link",
          "[shm][device][order][quarantine]") {
  Revoked o;
  SECTION("which closes") {
    o.pair.server().Close(kLink);
    REQUIRE(o.pair.Until([&] { return o.pair.server_events.down[kLink].size() == 1; }));
    o.pair.Settle();
    CHECK_FALSE(o.kept.expired());
    o.Finish();
  }
  SECTION("which its fabric ends") {
    o.pair.DropServer();
    o.pair.Settle();
    CHECK_FALSE(o.kept.expired());
    o.stream.Finish();
  }
  SECTION("unless its process dies") {
    o.pair.DropClient();
    CHECK(o.pair.Until([&] { return o.kept.expired(); }));
  }
}

TEST_CASE("nobody spins for a revocation that waits for a stream, and it ends in time",
          "[shm][device][order][sleep]") {
  Ordered o(ShmThatWaits(kLongNs, 100'000'000));
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  fabric::Fabric& server = o.pair.server();
  server.Revoke({1, 1});
  const auto wait_for = [&](absl::FunctionRef<bool()> done) {
    while (!done()) {
      if (server.HasLater() || server.Arm()) {
        server.Poll(o.pair.server_events);
        continue;
      }
      pollfd woken{server.fd(), POLLIN, 0};
      REQUIRE(poll(&woken, 1, 10000) == 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      server.Disarm();
      server.Poll(o.pair.server_events);
    }
  };
  wait_for([&] { return !o.pair.server_events.revoked.empty(); });
  // Nor does it for what is kept: its reader says when it is done.
  const std::weak_ptr<FakeRegion> kept = o.source;
  o.source.reset();
  while (server.HasLater() || server.Arm()) server.Poll(o.pair.server_events);
  CHECK_FALSE(kept.expired());
  o.stream.Finish();
  while (!o.Ended(1)) o.pair.client().Poll(o.pair.client_events);
  wait_for([&] { return kept.expired(); });
}

// A link that was closed under a copy in its peer's stream, and has waited long enough.
struct Forced : Ordered {
  Forced() : Ordered(ShmThatWaits(1'000'000)) {
    Read(1);
    REQUIRE(pair.Until([&] { return Told(1); }));
  }
  void Close() {
    pair.server().Close(kLink);
    REQUIRE(pair.Until([&] { return pair.server_events.down[kLink].size() == 1; }));
    CHECK(pair.client_events.down[kLink].empty());
    // Its owner lets go of what was leased.
    kept = source;
    source.reset();
    CHECK_FALSE(kept.expired());
  }
  bool Released() {
    return pair.Until([&] { return kept.expired(); });
  }
  std::weak_ptr<FakeRegion> kept;
};

TEST_CASE("a link ends though its peer's stream stands still, and what that reads is kept",
          "[shm][device][order][quarantine]") {
  Forced o;
  SECTION("leased to the end") { o.Close(); }
  SECTION("revoked before") {
    o.pair.server().Revoke({1, 1});
    o.Close();
    CHECK(o.pair.server_events.revoked.size() == 1);
  }
  CHECK(o.pair.server_events.after_down == 0);
  o.pair.Settle(std::chrono::milliseconds(200));
  CHECK_FALSE(o.kept.expired());
  o.stream.Finish(2);
  REQUIRE(o.pair.Until([&] { return o.Ended(1); }));
  CHECK(o.Arrived());
  CHECK(o.Released());
}

TEST_CASE("what a stream reads is kept until its process is dead",
          "[shm][device][order][quarantine]") {
  Forced o;
  o.Close();
  o.pair.DropClient();
  CHECK(o.Released());
}

TEST_CASE("a link's end gives back what no stream reads", "[shm][device][order][quarantine]") {
  Forced o;
  std::shared_ptr<FakeRegion> other = MakeFake(o.from, kBytes);
  LeaseNow(o.pair, o.pair.server(), o.pair.server_events, {2, 1}, kLink, kOwner, other, 0, kBytes);
  o.Close();
  const std::weak_ptr<FakeRegion> free = other;
  other.reset();
  CHECK(free.expired());
}

TEST_CASE("memory in quarantine outlasts its fabric, and a sleeping one looks after it",
          "[shm][device][order][quarantine]") {
  Forced o;
  o.Close();
  SECTION("outlasts") {
    o.pair.DropServer();
    o.pair.Settle();
    CHECK_FALSE(o.kept.expired());
    o.stream.Finish();
  }
  SECTION("sleeps") {
    fabric::Fabric& server = o.pair.server();
    const auto sleep = [&] {
      while (server.HasLater() || server.Arm()) server.Poll(o.pair.server_events);
    };
    sleep();
    o.stream.Finish();
    fabric::Fabric& client = o.pair.client();
    while (o.pair.client_events.down[kLink].empty()) client.Poll(o.pair.client_events);
    while (!o.kept.expired()) {
      pollfd woken{server.fd(), POLLIN, 0};
      REQUIRE(poll(&woken, 1, 10000) == 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      server.Disarm();
      server.Poll(o.pair.server_events);
      sleep();
    }
  }
}

TEST_CASE("nobody spins for a copy that stands in a stream, and its end is noticed",
          "[shm][device][order]") {
  Ordered o;
  fabric::Fabric& client = o.pair.client();
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1) && !client.HasLater(); }));
  REQUIRE_FALSE(client.Arm());
  o.stream.Finish();
  pollfd woken{client.fd(), POLLIN, 0};
  REQUIRE(poll(&woken, 1, 10000) == 1);
  client.Disarm();
  REQUIRE(o.pair.Until([&] { return o.Ended(1); }));
}

TEST_CASE("nobody spins for a link whose peer's stream still copies", "[shm][device][order]") {
  Ordered o;
  o.Read(1);
  REQUIRE(o.pair.Until([&] { return o.Told(1); }));
  fabric::Fabric& server = o.pair.server();
  server.Close(kLink);
  fabric::Fabric& client = o.pair.client();
  REQUIRE(o.pair.Until([&] { return !server.HasLater() && !client.HasLater(); }));
  REQUIRE_FALSE(client.Arm());
  client.Disarm();
  REQUIRE_FALSE(server.Arm());
  o.stream.Finish();
  // It looks by itself, whether it is rung or not.
  pollfd woken{server.fd(), POLLIN, 0};
  REQUIRE(poll(&woken, 1, 10000) == 1);
  server.Disarm();
  REQUIRE(o.pair.Until([&] { return o.pair.server_events.down[kLink].size() == 1; }));
}

}  // namespace
}  // namespace verbena::contract
