// shm between devices, in the order of a stream: told when the copy stands in the stream, and the
// lease is held until it has ended.
#include <poll.h>

#include <vector>

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
  Ordered() {
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
  const Subject subject = ShmSubject();
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
  constexpr uint32_t kReads = 40;
  for (uint32_t i = 0; i < kReads; ++i) o.Read(i);
  REQUIRE(o.pair.Until([&] { return o.Told(23); }));
  o.pair.Settle();
  CHECK_FALSE(o.Told(24));  // so many stand in streams at once
  o.stream.Finish(100);
  REQUIRE(o.pair.Until([&] { return o.Ended(kReads - 1); }));
  for (uint32_t i = 0; i < kReads; ++i) CHECK(o.Ended(i));
  o.pair.server().Revoke({1, 1});
  REQUIRE(o.pair.Until([&] { return !o.pair.server_events.revoked.empty(); }));
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
