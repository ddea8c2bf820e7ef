#include <algorithm>
#include <cstring>
#include <set>
#include <thread>

#include "tests/contract/fabric_contract.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{3};

uint32_t SlotsOf(const fabric::Traits& traits, uint32_t bytes) {
  return (bytes + traits.slot_bytes - 1) / traits.slot_bytes;
}

TEST_CASE("frames of every size arrive whole and in order, both ways", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  const uint32_t segment = pair.client().traits().segment_bytes;
  std::set<uint32_t> sizes;
  for (uint32_t n = 8; n <= 600; ++n) sizes.insert(n);
  for (uint32_t n = 1024; n <= segment; n *= 2) sizes.insert({n - 1, n, std::min(n + 1, segment)});
  sizes.insert(segment);
  uint32_t seed = 0;
  for (const uint32_t bytes : sizes) {
    // A frame each way. Expect: whole, as sent, once.
    ++seed;
    REQUIRE(SendFrame(pair.client(), kLink, bytes, seed));
    REQUIRE(SendFrame(pair.server(), kLink, bytes, seed + 1));
    REQUIRE(pair.Until([&] {
      return pair.server_events.frames_of(kLink) == seed &&
             pair.client_events.frames_of(kLink) == seed;
    }));
    INFO("bytes " << bytes);
    REQUIRE(FrameIs(pair.server_events.frames[kLink].back(), bytes, seed));
    REQUIRE(FrameIs(pair.client_events.frames[kLink].back(), bytes, seed + 1));
  }
}

TEST_CASE("a full window each way is taken without loss, again and again", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  const fabric::Traits traits = pair.client().traits();
  uint32_t sent = 0;
  uint32_t random = 12345;
  std::vector<uint32_t> sizes;
  for (int round = 0; round < 50; ++round) {
    // Both ends fill the other's window. Expect: everything arrives, in order.
    uint32_t slots = 0;
    while (true) {
      random = random * 1664525 + 1013904223;
      uint32_t bytes = 8 + (random >> 8) % (traits.segment_bytes - 7);
      if (round % 2 == 0) bytes = 8 + bytes % 120;
      if (slots + SlotsOf(traits, bytes) > traits.window_slots) break;
      auto send = [&](fabric::Fabric& from, Recorder& events) {
        const int before = events.sendable[kLink];
        while (!SendFrame(from, kLink, bytes, sent)) {
          REQUIRE(pair.Until([&] { return events.sendable[kLink] > before; }));
        }
      };
      send(pair.client(), pair.client_events);
      send(pair.server(), pair.server_events);
      slots += SlotsOf(traits, bytes);
      sizes.push_back(bytes);
      ++sent;
    }
    REQUIRE(pair.Until([&] {
      return pair.server_events.frames_of(kLink) == sent &&
             pair.client_events.frames_of(kLink) == sent;
    }));
  }
  for (uint32_t i = 0; i < sent; ++i) {
    REQUIRE(FrameIs(pair.server_events.frames[kLink][i], sizes[i], i));
    REQUIRE(FrameIs(pair.client_events.frames[kLink][i], sizes[i], i));
  }
  REQUIRE(pair.server_events.down[kLink].empty());
}

TEST_CASE("several frames go with one Send; discarded ones do not", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  fabric::OutFrame frames[3], unwanted;
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(pair.client().AcquireFrame(kLink, frames[i]));
    REQUIRE(frames[i].capacity >= pair.client().traits().segment_bytes);
    frames[i].bytes = 100 + i;
    Fill(frames[i].data + 2, frames[i].bytes - 2, i);
  }
  REQUIRE(pair.client().AcquireFrame(kLink, unwanted));
  pair.client().Discard(kLink, unwanted);
  pair.client().Send(kLink, frames);
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 3; }));
  pair.Settle(std::chrono::milliseconds(2));
  REQUIRE(pair.server_events.frames_of(kLink) == 3);
  for (uint32_t i = 0; i < 3; ++i) {
    REQUIRE(FrameIs(pair.server_events.frames[kLink][i], 100 + i, i));
  }
}

TEST_CASE("frames in the caller's own memory arrive in order with others, and are copied at once",
          "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  const uint32_t largest = pair.client().traits().copied_bytes;
  if (largest == 0) {
    WARN("skipped: " << subject.name << " copies no frames");
    return;
  }
  alignas(64) std::byte own[16 * 1024];
  REQUIRE(largest <= sizeof(own));
  // In turn: one of ours, overwritten as soon as it is handed over, and one in a buffer.
  const uint32_t sizes[] = {8, 64, std::min(largest, 2048u), 72};  // within the credits
  uint32_t sent = 0;
  for (const uint32_t bytes : sizes) {
    Fill(own + 2, bytes - 2, sent++);
    pair.client().SendCopy(kLink, own, bytes);
    memset(own, 0xee, bytes);
    REQUIRE(SendFrame(pair.client(), kLink, bytes, sent++));
    REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == sent; }));
  }
  for (uint32_t i = 0; i < sent; ++i) {
    REQUIRE(FrameIs(pair.server_events.frames[kLink][i], sizes[i / 2], i));
  }
}

TEST_CASE("the largest frame that is copied arrives whole", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  const uint32_t largest = pair.client().traits().copied_bytes;
  if (largest == 0) {
    WARN("skipped: " << subject.name << " copies no frames");
    return;
  }
  alignas(64) std::byte own[16 * 1024];
  REQUIRE(largest <= sizeof(own));
  Fill(own + 2, largest - 2, 5);
  pair.client().SendCopy(kLink, own, largest);
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 1; }));
  REQUIRE(FrameIs(pair.server_events.frames[kLink][0], largest, 5));
}

TEST_CASE("what is sent before the other end starts is delivered when it does",
          "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  SocketPair sockets = MakeSockets(subject.one_host);
  REQUIRE(JoinLink(pair.client(), kLink, pair.server(), kLink, sockets).ok());
  pair.client().Start(kLink);
  REQUIRE(SendFrame(pair.client(), kLink, 64, 1));
  pair.Settle(std::chrono::milliseconds(2));
  REQUIRE(pair.server_events.frames_of(kLink) == 0);
  pair.server().Start(kLink);
  REQUIRE(pair.Until([&] { return pair.server_events.frames_of(kLink) == 1; }));
  REQUIRE(FrameIs(pair.server_events.frames[kLink][0], 64, 1));
  pair.client().Close(kLink);
  REQUIRE(pair.Until([&] { return !pair.server_events.down[kLink].empty(); }));
  CloseSockets(sockets.client);
  CloseSockets(sockets.server);
}

TEST_CASE("a sink may send from inside OnFrame", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  pair.server_events.on_frame = [&](LinkId link, absl::Span<const std::byte> frame) {
    REQUIRE(SendFrame(pair.server(), link, static_cast<uint32_t>(frame.size()), 7));
  };
  for (uint32_t i = 1; i <= 200; ++i) {
    REQUIRE(SendFrame(pair.client(), kLink, 8 + i, i));
    REQUIRE(pair.Until([&] { return pair.client_events.frames_of(kLink) == i; }));
    REQUIRE(FrameIs(pair.client_events.frames[kLink].back(), 8 + i, 7));
  }
}

// A real fabric's two ends may be reactors of one process. ThreadSanitizer says whether it sees the
// order; tests of everything above rest on that.
TEST_CASE("what happened before a frame was sent is seen by the thread that gets it",
          "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  if (subject.one_thread) return;
  Pair pair(subject);
  pair.Connect(kLink);
  constexpr int kTurns = 200;
  int turns = 0;  // written by the end whose turn it is
  // Each end answers a frame with a frame, in a thread of its own, until both have had their turns.
  auto play = [&](fabric::Fabric& end, Recorder& events, int last) {
    const auto late = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    bool done = false;
    events.on_frame = [&](LinkId, absl::Span<const std::byte>) {
      done = ++turns >= last;
      if (turns < kTurns) SendFrame(end, kLink, 64, 1);
    };
    while (!done && std::chrono::steady_clock::now() < late) {
      end.Poll(events);
      end.EndTick();
    }
    events.on_frame = nullptr;
  };
  REQUIRE(SendFrame(pair.client(), kLink, 64, 1));
  std::thread server([&] { play(pair.server(), pair.server_events, kTurns - 1); });
  play(pair.client(), pair.client_events, kTurns);
  server.join();
  REQUIRE(turns == kTurns);
}

TEST_CASE("AcquireFrame that failed is followed by OnSendable", "[contract][frames]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Pair pair(subject);
  pair.Connect(kLink);
  // Take every buffer. Expect: AcquireFrame says no in the end.
  std::vector<fabric::OutFrame> taken;
  fabric::OutFrame frame;
  while (taken.size() < 100'000 && pair.client().AcquireFrame(kLink, frame)) taken.push_back(frame);
  REQUIRE(taken.size() < 100'000);
  pair.PollOnce();
  REQUIRE(pair.client_events.sendable[kLink] == 0);
  // One comes back. Expect: told so, and it can be had.
  pair.client().Discard(kLink, taken.back());
  taken.pop_back();
  REQUIRE(pair.Until([&] { return pair.client_events.sendable[kLink] == 1; }));
  REQUIRE(pair.client().AcquireFrame(kLink, frame));
  pair.client().Discard(kLink, frame);
  for (const fabric::OutFrame& t : taken) pair.client().Discard(kLink, t);
}

}  // namespace
}  // namespace verbena::contract
