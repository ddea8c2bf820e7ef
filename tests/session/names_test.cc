// Names of leases in RECALL and LEASE_KEYS, of which a peer may send any number.
#include <malloc.h>

#include <chrono>

#include "tests/session/rogue.h"
#include "tests/time_bounds.h"

namespace verbena::session::testing {
namespace {

constexpr uint32_t kCalls = 16;  // as many as the rogue may have open

std::vector<std::byte> Recall(uint64_t lease) {
  std::vector<std::byte> record(wire::kLeaseRecordBytes);
  wire::WriteLease(RecordType::kRecall, lease, true, record.data());
  return record;
}

std::vector<std::byte> Keys(uint64_t lease, uint32_t generation, size_t count) {
  wire::LeaseKeys keys;
  keys.generation = generation;
  for (size_t i = 0; i < count; ++i) keys.keys.push_back({lease + i, wire::Key{1, 2, 3, 4}});
  std::vector<std::byte> record(wire::LeaseKeysBytes(count));
  wire::WriteLeaseKeys(keys, record.data());
  return record;
}

wire::PayloadEntry EntryOf(uint64_t lease, const Rogue& rogue) {
  wire::PayloadEntry entry;
  entry.ticket = 1;
  entry.lease = lease;
  entry.bytes = 8;
  entry.lanes = 1;
  entry.key_generation = rogue.owner_lane.generation & wire::kKeyGenerationMask;
  entry.pieces = {{0, 8}};
  entry.keys.resize(1);
  return entry;
}

// The head of a request with as many payloads as one may have, leased to the victim. The name of
// payload i of call c is kName + c * kPayloadsMax + i.
constexpr uint64_t kName = uint64_t{1} << 32;
struct Head {
  Head(Rogue& rogue, uint32_t call) {
    wire::PayloadTable table;
    for (uint32_t i = 0; i < limits::kPayloadsMax; ++i) {
      table.push_back(EntryOf(kName + call * limits::kPayloadsMax + i, rogue));
    }
    wire::MessageParts parts;
    parts.table = table;
    const size_t bytes = wire::SectionsBytes(parts);
    block = *memory::AllocateBlock(bytes);
    flags = wire::EncodeSections(parts, block.data());
    rogue.leased = false;
    slot = LeaseSlot{1 + call, 1};
    rogue.mine.Lease(slot, rogue.id, rogue.owner_lane, block.region(), block.data(), bytes);
    REQUIRE(rogue.Run([&] { return rogue.leased; }));
    entry = EntryOf(slot.word(), rogue);
    entry.bytes = bytes;
    entry.pieces = {{0, bytes}};
    entry.keys = {rogue.key.words};
  }
  std::vector<std::byte> RequestOf(uint32_t call) const {
    std::string content(wire::EntryBytes(entry), '\0');
    wire::EncodeEntry(entry, reinterpret_cast<std::byte*>(content.data()));
    return Request(call, 1, content, static_cast<uint8_t>(flags | wire::kFlagHeadLeased));
  }
  memory::Block block;
  LeaseSlot slot;
  wire::PayloadEntry entry;
  uint8_t flags = 0;
};

// How long the victim's reactor is busy with what `frame` says, at the longest of its turns.
double LongestMs(Rogue& rogue, const std::vector<std::byte>& frame) {
  rogue.Send(frame);
  double longest_ms = 0;
  for (int i = 0; i < 20; ++i) {
    const auto began = std::chrono::steady_clock::now();
    rogue.victim.reactor().Tick();
    const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - began;
    longest_ms = std::max(longest_ms, took.count());
    rogue.mine.Poll(rogue);
  }
  return longest_ms;
}

TEST_CASE("names of leases cost the same however many payloads there are", "[session][hostile]") {
  const bool recall = GENERATE(true, false);
  const bool known = GENERATE(true, false);
  Rogue rogue;
  rogue.Prove();
  rogue.grants = true;
  std::vector<Head> heads;
  for (uint32_t call = 0; call < kCalls; ++call) {
    heads.emplace_back(rogue, call);
    rogue.Send(heads.back().RequestOf(call));
    REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == call + 1u; }));
  }
  const uint64_t last = kName + kCalls * limits::kPayloadsMax - 1;
  const uint64_t lease = known ? last : last + 1;
  std::vector<std::byte> frame;
  while (frame.size() < 7'000) {
    frame = frame + (recall ? Recall(lease) : Keys(lease, rogue.owner_lane.generation, 1));
  }
  const double best_ms =
      test_bounds::BestMs(recall ? "a frame of RECALLs" : "a frame of LEASE_KEYS",
                          test_bounds::kFrameMs, [&] { return LongestMs(rogue, frame); });
  CHECK(best_ms <= test_bounds::kFrameMs * kSlowdown);
  CHECK_FALSE(rogue.down);
  rogue.AnswerAll();
}

TEST_CASE("keys for payloads whose table is still READ are kept once for all that wait",
          "[session][hostile]") {
  Rogue rogue;
  rogue.Prove();
  rogue.grants = true;
  // Heads on a lane that never comes.
  std::vector<Head> heads;
  for (uint32_t call = 0; call < kCalls; ++call) {
    heads.emplace_back(rogue, call);
    heads.back().entry.key_generation = 7;
    rogue.Send(heads.back().RequestOf(call));
  }
  const size_t before = mallinfo2().uordblks;
  for (uint64_t name = 0; name < limits::kPayloadsMax; name += 150) {
    rogue.Send(Keys(kName + name, 7, 150));
    rogue.Run([ticks = 0]() mutable { return ++ticks > 20; });
  }
  // Expect: not once for each of them. A sanitizer's allocator says 0 here.
  CHECK(mallinfo2().uordblks <= before + limits::kPayloadsMax * 1024);
  CHECK(rogue.RunLong([&] { return rogue.replies.size() == kCalls; }, 30'000'000'000));
  CHECK_FALSE(rogue.down);
}

}  // namespace
}  // namespace verbena::session::testing
