// What happens to one process when the other dies or stops.
#include <poll.h>

#include <algorithm>
#include <cstring>

#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/two_processes.h"
#include "tests/time_bounds.h"

namespace verbena::contract {
namespace {

using std::chrono::milliseconds;
using std::chrono::steady_clock;

constexpr LinkId kLink{2};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kBytes = 64 << 20;

bool Until(End& end, absl::FunctionRef<bool()> done) {
  const auto deadline = steady_clock::now() + std::chrono::seconds(10);
  while (!done()) {
    if (steady_clock::now() > deadline) return false;
    end.fabric->Poll(end.events);
  }
  return true;
}

// Leases a large region to the peer, tells it the key in a frame, and echoes frames for ever.
void Own(End& end, bool slab) {
  const memory::RegionRef region = slab ? MakeSlab(kBytes) : MakeForeign(kBytes);
  Fill(region->base(), 4096, 11);
  end.fabric->Lease({1, 1}, kLink, kOwner, region, region->base(), kBytes);
  end.events.on_frame = [&](LinkId link, absl::Span<const std::byte> frame) {
    SendFrame(*end.fabric, link, static_cast<uint32_t>(frame.size()), 3);
  };
  end.events.keep_frames = false;
  bool told = false;
  while (true) {
    end.fabric->Poll(end.events);
    const auto& leased = end.events.leased[LeaseSlot{1, 1}.word()];
    if (told || leased.empty()) continue;
    told = true;
    fabric::OutFrame frame;
    if (!end.fabric->AcquireFrame(kLink, frame)) continue;
    frame.bytes = 8 + sizeof(fabric::RemoteKey);
    memset(frame.data, 1, 8);
    memcpy(frame.data + 8, &leased[0].key, sizeof(fabric::RemoteKey));
    end.fabric->Send(kLink, {&frame, 1});
  }
}

fabric::RemoteKey KeyFrom(End& end) {
  REQUIRE(Until(end, [&] { return end.events.frames_of(kLink) == 1; }));
  fabric::RemoteKey key;
  const std::vector<std::byte>& frame = end.events.frames[kLink][0];
  REQUIRE(frame.size() == 8 + sizeof key);
  memcpy(&key, frame.data() + 8, sizeof key);
  end.events.frames.clear();
  end.events.keep_frames = false;
  end.events.frame_count = 0;
  return key;
}

// Whether this fabric can reach memory of that kind between these processes.
bool Reads(End& end, const fabric::RemoteKey& key) {
  std::vector<std::byte> into(4096);
  const fabric::LocalPiece piece{&PlainDevice(), into.data(), into.size()};
  end.fabric->Read({99, 1}, kLink, kReader, key, 0, {&piece, 1});
  auto& answers = end.events.reads[ReadSlot{99, 1}.word()];
  REQUIRE(Until(end, [&] { return !answers.empty(); }));
  const Error error = answers[0];
  end.events.reads.clear();
  if (error == Error::kUnsupported) return false;
  REQUIRE(error == Error::kOk);
  REQUIRE(Filled(into.data(), into.size(), 11));
  return true;
}

#define VERBENA_TWO_PROCESSES(subject)                                           \
  VERBENA_CONTRACT_SUBJECT(subject);                                             \
  if (!subject.two_processes) {                                                  \
    WARN("skipped: " << subject.name << " joins endpoints of one process only"); \
    return;                                                                      \
  }

// From the kill to the link's end: the longer of both kinds of memory.
double KillUnderReads(const Subject& subject) {
  double longest_ms = 0;
  for (const bool slab : {true, false}) {
    INFO("slab " << slab);
    OtherProcess other(subject, kLink, [slab](End& end) { Own(end, slab); });
    End& end = other.here();
    const fabric::RemoteKey key = KeyFrom(end);
    if (!Reads(end, key)) {
      REQUIRE_FALSE(slab);  // which every fabric reaches
      WARN("skipped: " << subject.name << " cannot READ memory of a user's own here");
      continue;
    }
    const size_t chunk = std::min<size_t>(kBytes, end.fabric->traits().read_chunk_bytes);
    std::vector<std::byte> into(chunk);
    for (uint32_t i = 0; i < 8; ++i) {
      const fabric::LocalPiece piece{&PlainDevice(), into.data(), chunk};
      end.fabric->Read({i, 1}, kLink, kReader, key, 0, {&piece, 1});
    }
    for (int i = 0; i < 3; ++i) end.fabric->Poll(end.events);
    // Expect: an answer for each, then the link is down, within 100 ms and once.
    const auto killed = steady_clock::now();
    other.Kill();
    REQUIRE(Until(end, [&] { return !end.events.down[kLink].empty(); }));
    const std::chrono::duration<double, std::milli> took = steady_clock::now() - killed;
    REQUIRE(end.events.reads.size() == 8);
    for (const auto& [slot, answers] : end.events.reads) REQUIRE(answers.size() == 1);
    REQUIRE(end.events.down[kLink][0].code() == absl::StatusCode::kUnavailable);
    for (int i = 0; i < 1000; ++i) end.fabric->Poll(end.events);
    REQUIRE(end.events.down[kLink].size() == 1);
    REQUIRE(end.events.after_down == 0);
    longest_ms = std::max(longest_ms, took.count());
  }
  return longest_ms;
}

TEST_CASE("kill -9 of the owner under READs ends each, and the link", "[contract][process]") {
  VERBENA_TWO_PROCESSES(subject);
  const double took_ms = test_bounds::BestMs(subject.name.c_str(), test_bounds::kDeathMs,
                                             [&] { return KillUnderReads(subject); });
  CHECK(took_ms <= test_bounds::kDeathMs * kSlowdown);
}

TEST_CASE("kill -9 of a peer in the middle of a batch", "[contract][process]") {
  VERBENA_TWO_PROCESSES(subject);
  OtherProcess other(subject, kLink, [](End& end) { Own(end, true); });
  End& end = other.here();
  KeyFrom(end);
  // Frames go there and back; then it dies with some under way. Expect: sending goes on harmlessly
  // until the link is down.
  for (int i = 0; i < 40; ++i) SendFrame(*end.fabric, kLink, 64, 1);
  REQUIRE(Until(end, [&] { return end.events.frame_count >= 20; }));
  for (int i = 0; i < 20; ++i) SendFrame(*end.fabric, kLink, 64, 1);
  other.Kill();
  REQUIRE(Until(end, [&] {
    SendFrame(*end.fabric, kLink, 64, 1);
    return !end.events.down[kLink].empty();
  }));
  REQUIRE(end.events.down[kLink].size() == 1);
}

TEST_CASE("a stopped reader does not keep an owner from revoking", "[contract][process]") {
  VERBENA_TWO_PROCESSES(subject);
  // The child reads from us for ever; it is stopped in the middle of it.
  OtherProcess other(subject, kLink, [](End& end) {
    fabric::RemoteKey key;
    bool have = false;
    std::vector<std::byte> into(1 << 20);
    end.events.on_frame = [&](LinkId, absl::Span<const std::byte> frame) {
      if (frame.size() != 8 + sizeof key) return;
      memcpy(&key, frame.data() + 8, sizeof key);
      have = true;
    };
    uint32_t slot = 0;
    while (true) {
      end.fabric->Poll(end.events);
      if (!have || end.events.reads.size() < slot) continue;
      const fabric::LocalPiece piece{&PlainDevice(), into.data(), 1 << 16};
      end.fabric->Read({++slot, 1}, kLink, kReader, key, 0, {&piece, 1});
    }
  });
  End& end = other.here();
  const memory::RegionRef region = MakeSlab(kBytes);
  end.fabric->Lease({1, 1}, kLink, kOwner, region, region->base(), kBytes);
  auto& leased = end.events.leased[LeaseSlot{1, 1}.word()];
  REQUIRE(Until(end, [&] { return !leased.empty(); }));
  REQUIRE(leased[0].error == Error::kOk);
  fabric::OutFrame frame;
  REQUIRE(end.fabric->AcquireFrame(kLink, frame));
  frame.bytes = 8 + sizeof(fabric::RemoteKey);
  memcpy(frame.data + 8, &leased[0].key, sizeof(fabric::RemoteKey));
  end.fabric->Send(kLink, {&frame, 1});
  const auto until = steady_clock::now() + milliseconds(30);
  while (steady_clock::now() < until) end.fabric->Poll(end.events);
  other.Stop();
  end.fabric->Revoke({1, 1});
  REQUIRE(Until(end, [&] { return end.events.revoked[LeaseSlot{1, 1}.word()] == 1; }));
}

TEST_CASE("a peer that dies while this end sleeps wakes it", "[contract][process]") {
  VERBENA_TWO_PROCESSES(subject);
  OtherProcess other(subject, kLink, [](End& end) { Own(end, true); });
  End& end = other.here();
  KeyFrom(end);
  while (end.fabric->Arm()) {
    end.fabric->Disarm();
    end.fabric->Poll(end.events);
  }
  other.Kill();
  pollfd ready{end.fabric->fd(), POLLIN, 0};
  REQUIRE(poll(&ready, 1, 5000) == 1);
  end.fabric->Disarm();
  REQUIRE(Until(end, [&] { return !end.events.down[kLink].empty(); }));
}

}  // namespace
}  // namespace verbena::contract
