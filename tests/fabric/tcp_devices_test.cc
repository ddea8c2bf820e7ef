// tcp with memory that the CPU may not touch: by way of stages, at both ends.
#include <vector>

#include "rpc/memory/pool.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/tcp_peer.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kChunk = fabric::tcp::kChunkBytesMax;
constexpr size_t kChunks = 24;
// Of that size.
constexpr int kStages = 3;
constexpr size_t kBytes = kChunks * kChunk - 77;

struct Devices {
  explicit Devices(int socket_buffer_bytes = 0) : subject(TcpSubject(socket_buffer_bytes)) {
    // Some room in the pools: stages do not grow them.
    REQUIRE(memory::AllocateBlock(32 << 20).ok());
    pattern.resize(kBytes);
    Fill(pattern.data(), kBytes, 5);
    source = MakeFake(from, kBytes);
    target = MakeFake(to, kBytes);
    from.Write(source->base(), pattern.data(), kBytes);
    pair.Connect(kLink);
    pair.OpenLane(kLink, 0, pair.client());
    key =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, source, 0, kBytes);
  }
  ~Devices() {
    from.LetCopies(-1);
    to.LetCopies(-1);
  }
  void Read(uint32_t i) {
    const size_t bytes = std::min(kChunk, kBytes - i * kChunk);
    const fabric::LocalPiece piece{&to, target->base() + i * kChunk, bytes};
    pair.client().Read({i, 1}, kLink, kReader, key, i * kChunk, {&piece, 1});
  }
  void ReadAll() {
    for (uint32_t i = 0; i < kChunks; ++i) Read(i);
  }
  size_t Done(Error error = Error::kOk) {
    size_t done = 0;
    for (const auto& [slot, errors] : pair.client_events.reads) {
      REQUIRE(errors.size() == 1);
      done += errors[0] == error;
    }
    return done;
  }
  bool Arrived() {
    std::vector<std::byte> seen(kBytes);
    to.Read(seen.data(), target->base(), kBytes);
    return seen == pattern;
  }

  memory::FakeDevice& from = memory::FakeDevice::Install(3);
  memory::FakeDevice& to = memory::FakeDevice::Install(4);
  const Subject subject;
  Pair pair{subject};
  std::vector<std::byte> pattern;
  std::shared_ptr<FakeRegion> source, target;
  fabric::RemoteKey key;
};

TEST_CASE("device memory is read by way of stages, whole", "[tcp][device]") {
  const int buffer = GENERATE(0, 16384);
  Devices d(buffer);
  for (int round = 0; round < 2; ++round) {
    d.pair.client_events.reads.clear();
    d.to.Write(d.target->base(), std::vector<std::byte>(kBytes).data(), kBytes);
    d.ReadAll();
    REQUIRE(d.pair.Until([&] { return d.Done() == kChunks; }));
    CHECK(d.Arrived());
    d.pair.Settle();  // the lane comes to rest, and gives its stages up
  }
  CHECK(d.pair.client().traits().device_path == Path::kPinnedStaging);
}

TEST_CASE("the owner's device copies ahead of the socket", "[tcp][device]") {
  Devices d;
  d.from.LetCopies(0);
  d.ReadAll();
  // The first chunk and those after it are copied at the same time, as many as there are stages.
  REQUIRE(d.pair.Until([&] { return d.from.waiting() == kStages; }));
  d.pair.Settle();
  CHECK(d.from.waiting() == kStages);
  CHECK(d.Done() == 0);
  d.from.LetCopies(3);
  REQUIRE(d.pair.Until([&] { return d.Done() == 3; }));
  d.pair.Settle();
  CHECK(d.Done() == 3);
  d.from.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.Done() == kChunks; }));
  CHECK(d.Arrived());
}

TEST_CASE("a reader whose device stands still takes no more than its stages", "[tcp][device]") {
  Devices d;
  d.to.LetCopies(0);
  d.ReadAll();
  REQUIRE(d.pair.Until([&] { return d.to.waiting() == kStages; }));
  d.pair.Settle();
  CHECK(d.to.waiting() == kStages);
  CHECK(d.Done() == 0);
  // Frames go on.
  REQUIRE(SendFrame(d.pair.server(), kLink, 100, 1));
  REQUIRE(d.pair.Until([&] { return d.pair.client_events.frames_of(kLink) == 1; }));
  d.to.LetCopies(2);
  REQUIRE(d.pair.Until([&] { return d.Done() == 2; }));
  d.to.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.Done() == kChunks; }));
  CHECK(d.Arrived());
}

TEST_CASE("a revocation waits for the device that reads the memory, and nothing is delivered",
          "[tcp][device]") {
  Devices d;
  d.from.LetCopies(0);
  d.ReadAll();
  REQUIRE(d.pair.Until([&] { return d.from.waiting() > 0; }));
  d.pair.server().Revoke({1, 1});
  d.pair.Settle();
  CHECK(d.pair.server_events.revoked.empty());
  d.from.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.Done(Error::kLeaseLost) == kChunks; }));
  REQUIRE(d.pair.Until([&] { return d.pair.server_events.revoked.size() == 1; }));
}

TEST_CASE("a lane that breaks under copies is down when they have ended", "[tcp][device]") {
  Devices d;
  d.from.LetCopies(2);
  d.to.LetCopies(0);
  d.ReadAll();
  REQUIRE(d.pair.Until([&] { return d.to.waiting() == 2 && d.from.waiting() == kStages; }));
  d.pair.client().BreakLane(kLink, kReader);
  d.pair.Settle();
  CHECK(d.pair.client_events.lanes_down[kLink].empty());
  CHECK(d.pair.server_events.lanes_down[kLink].empty());
  d.to.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.pair.client_events.lanes_down[kLink].size() == 1; }));
  CHECK(d.Done() + d.Done(Error::kLaneDown) == kChunks);
  CHECK(d.Done(Error::kLaneDown) > 0);
  d.from.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.pair.server_events.lanes_down[kLink].size() == 1; }));
}

TEST_CASE("a copy that faults is that READ's, and the lane goes on", "[tcp][device]") {
  Devices d;
  const fabric::LocalPiece nowhere{&d.to, d.target->base() + kBytes - 10, 100};
  d.pair.client().Read({100, 1}, kLink, kReader, d.key, 0, {&nowhere, 1});
  d.ReadAll();
  REQUIRE(d.pair.Until([&] { return d.Done() == kChunks; }));
  CHECK(d.Done(Error::kFault) == 1);
  CHECK(d.Arrived());
}

}  // namespace
}  // namespace verbena::contract
