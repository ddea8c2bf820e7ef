#include <poll.h>

#include <thread>
#include <vector>

#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{9};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};

TEST_CASE("Close answers for all READs, then reports the link down, last and once",
          "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  pair.OpenLane(kLink, 0, pair.client());
  const memory::RegionRef region = MakeSlab(1 << 20);
  const fabric::RemoteKey key =
      LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, region, 0, 1 << 20);
  std::vector<std::byte> into(1 << 16);
  const fabric::LocalPiece piece{&PlainDevice(), into.data(), 4096};
  for (uint32_t i = 0; i < 8; ++i) {
    pair.client().Read({i, 1}, kLink, kReader, key, 0, {&piece, 1});
  }
  pair.client().Close(kLink);
  REQUIRE(pair.client_events.down[kLink].empty());  // never inline
  REQUIRE(pair.Until([&] { return !pair.client_events.down[kLink].empty(); }));
  REQUIRE(pair.client_events.reads.size() == 8);
  // The other end hears of it, and may still revoke.
  REQUIRE(pair.Until([&] { return !pair.server_events.down[kLink].empty(); }));
  REQUIRE(pair.server_events.down[kLink][0].code() == absl::StatusCode::kUnavailable);
  pair.server().Revoke({1, 1});
  REQUIRE(pair.Until([&] { return pair.server_events.revoked[LeaseSlot{1, 1}.word()] == 1; }));
  std::fill(into.begin(), into.end(), std::byte{0x77});
  pair.Settle();
  REQUIRE(std::count(into.begin(), into.end(), std::byte{0x77}) == 1 << 16);
  for (uint32_t i = 0; i < 8; ++i) {
    REQUIRE(pair.client_events.reads[ReadSlot{i, 1}.word()].size() == 1);
  }
  REQUIRE(pair.client_events.down[kLink].size() == 1);
  REQUIRE(pair.server_events.down[kLink].size() == 1);
  REQUIRE(pair.client_events.after_down + pair.server_events.after_down == 0);
}

TEST_CASE("frames sent before Close arrive before the link is down", "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  for (uint32_t i = 0; i < 5; ++i) REQUIRE(SendFrame(pair.client(), kLink, 64, i));
  pair.client().Close(kLink);
  REQUIRE(pair.Until([&] { return !pair.server_events.down[kLink].empty(); }));
  REQUIRE(pair.server_events.frames_of(kLink) == 5);
  REQUIRE(pair.server_events.after_down == 0);
}

TEST_CASE("a link number is used again after its link went down", "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  for (uint32_t round = 1; round <= 20; ++round) {
    pair.client_events = Recorder();
    pair.server_events = Recorder();
    pair.Connect(kLink);
    REQUIRE(SendFrame(pair.client(), kLink, 80, round));
    REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 1; }));
    REQUIRE(FrameIs(pair.server_events.frames[kLink][0], 80, round));
    (round % 2 == 0 ? pair.client() : pair.server()).Close(kLink);
    REQUIRE(pair.Until([&] {
      return !pair.client_events.down[kLink].empty() && !pair.server_events.down[kLink].empty();
    }));
  }
}

TEST_CASE("an abandoned preparation leaves the number free", "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  for (int i = 0; i < 50; ++i) {
    REQUIRE(pair.client().Prepare(kLink, fabric::Side::kClient, {}).ok());
    pair.client().Abandon(kLink);
  }
  pair.Connect(kLink);
  REQUIRE(SendFrame(pair.client(), kLink, 80, 1));
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 1; }));
}

TEST_CASE("an offer that is not one is refused and leaves nothing behind", "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  const std::string blobs[] = {"", "x", std::string(64, '\0'), std::string(64, '\xff'),
                               std::string(5000, 'a')};
  for (const std::string& blob : blobs) {
    SocketPair sockets = MakeSockets(subject.one_host);
    REQUIRE(pair.client().Prepare(kLink, fabric::Side::kClient, {}).ok());
    fabric::Offer offer;
    offer.blob = blob;
    const absl::Status status = pair.client().Complete(kLink, std::move(offer), sockets.client);
    // Fabrics that need nothing from the blob may take any.
    if (status.ok()) pair.client().Abandon(kLink);
    CloseSockets(sockets.client);
    CloseSockets(sockets.server);
  }
  pair.Connect(kLink);
  REQUIRE(SendFrame(pair.client(), kLink, 80, 1));
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 1; }));
}

TEST_CASE("200 links at once, each with its own frames; one goes, the others stay",
          "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  constexpr uint32_t kLinks = 200;
  for (uint32_t i = 0; i < kLinks; ++i) pair.Connect(LinkId{i});
  for (uint32_t round = 0; round < 5; ++round) {
    for (uint32_t i = 0; i < kLinks; ++i) {
      REQUIRE(SendFrame(pair.client(), LinkId{i}, 64 + i, i * 10 + round));
      REQUIRE(SendFrame(pair.server(), LinkId{i}, 65 + i, i * 10 + round));
    }
    REQUIRE(pair.Until([&] {
      for (uint32_t i = 0; i < kLinks; ++i) {
        if (pair.server_events.frames_of(LinkId{i}) != round + 1) return false;
        if (pair.client_events.frames_of(LinkId{i}) != round + 1) return false;
      }
      return true;
    }));
    for (uint32_t i = 0; i < kLinks; ++i) {
      REQUIRE(FrameIs(pair.server_events.frames[LinkId{i}][round], 64 + i, i * 10 + round));
    }
    pair.Settle(std::chrono::milliseconds(15));  // long enough for a fabric to let links rest
  }
  pair.client().Close(LinkId{17});
  REQUIRE(pair.Until([&] { return !pair.server_events.down[LinkId{17}].empty(); }));
  REQUIRE(SendFrame(pair.client(), LinkId{18}, 64, 1));
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(LinkId{18}) == 6; }));
}

// Sleeps as a reactor does: arm, poll once more, sleep, disarm.
bool SleepOnce(fabric::Fabric& fabric, int timeout_ms) {
  bool woken = true;
  if (!fabric.Arm()) {
    pollfd ready{fabric.fd(), POLLIN, 0};
    woken = poll(&ready, 1, timeout_ms) > 0;
  }
  fabric.Disarm();
  return woken;
}

TEST_CASE("a sleeper is woken for each frame, a thousand times, without loss",
          "[contract][sleep]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  constexpr uint32_t kRounds = 1000;
  // The server echoes from a thread of its own, sleeping whenever there is nothing. Expect: every
  // echo comes.
  std::atomic<bool> stop{false};
  std::atomic<int> timeouts{0};
  pair.server_events.keep_frames = false;
  pair.server_events.on_frame = [&](LinkId link, absl::Span<const std::byte> frame) {
    if (frame.size() == 8) {
      stop = true;
      return;
    }
    SendFrame(pair.server(), link, static_cast<uint32_t>(frame.size()), 1);
  };
  std::thread server([&] {
    while (!stop) {
      if (pair.server().Poll(pair.server_events)) continue;
      if (!SleepOnce(pair.server(), 5000)) ++timeouts;
    }
  });
  uint32_t seen = 0;
  for (uint32_t i = 0; i < kRounds; ++i) {
    if (i % 10 == 0) std::this_thread::sleep_for(std::chrono::microseconds(i % 300));
    SendFrame(pair.client(), kLink, 64 + i % 100, i);
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (pair.client_events.frames_of(kLink) == seen && std::chrono::steady_clock::now() < end) {
      if (!pair.client().Poll(pair.client_events) && !SleepOnce(pair.client(), 5000)) ++timeouts;
    }
    if (pair.client_events.frames_of(kLink) == seen) break;
    ++seen;
  }
  // Frames of 8 bytes end the server, however many it takes.
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
  SendFrame(pair.client(), kLink, 8, 0);
  while (!stop && std::chrono::steady_clock::now() < end) pair.client().Poll(pair.client_events);
  stop = true;
  server.join();
  REQUIRE(seen == kRounds);
  REQUIRE(timeouts == 0);
}

TEST_CASE("an armed fabric with nothing to do stays asleep", "[contract][sleep]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  for (uint32_t i = 0; i < 20; ++i) pair.Connect(LinkId{i});
  pair.Settle(std::chrono::milliseconds(30));
  REQUIRE_FALSE(pair.server().Arm());
  pollfd ready{pair.server().fd(), POLLIN, 0};
  REQUIRE(poll(&ready, 1, 50) == 0);
  // A frame on a link that has rested. Expect: it wakes.
  REQUIRE(SendFrame(pair.client(), LinkId{7}, 64, 1));
  for (int i = 0; i < 100; ++i) pair.client().Poll(pair.client_events);
  REQUIRE(poll(&ready, 1, 2000) == 1);
  pair.server().Disarm();
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(LinkId{7}) == 1; }));
}

TEST_CASE("the end of a fabric takes the links of its peers down", "[contract][link]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  pair.Connect(LinkId{10});
  REQUIRE(SendFrame(pair.client(), kLink, 64, 1));
  pair.DropClient();
  REQUIRE(pair.Until([&] {
    return !pair.server_events.down[kLink].empty() && !pair.server_events.down[LinkId{10}].empty();
  }));
  REQUIRE(pair.server_events.down[kLink][0].code() == absl::StatusCode::kUnavailable);
}

}  // namespace
}  // namespace verbena::contract
