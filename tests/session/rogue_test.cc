// A peer that does not keep to the protocol.
#include "tests/session/rogue.h"

#include <random>

#include "absl/strings/str_cat.h"

namespace verbena::session::testing {
namespace {

TEST_CASE("a peer that takes grants and gives none does not keep this side flushing",
          "[session][hostile]") {
  Rogue rogue;
  rogue.Prove();
  // Each frame consumes slots, and the grants for them use up this side's credits. Then one is due
  // that cannot leave.
  for (int i = 0; i < 100'000 && !rogue.down; ++i) {
    rogue.Send(Bare(RecordType::kCancel, 0xffff));
    rogue.victim.reactor().Tick();
    rogue.mine.Poll(rogue);
  }
  // Its own credits are used up as well, and it goes on.
  rogue.ExpectClosed(absl::StatusCode::kResourceExhausted, "more than its credits: 1 slots of");
}

TEST_CASE("an honest rogue is served", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  rogue.Send(Request(3, 1, "hello"));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  CHECK(rogue.pair.sink.served[0].body == "hello");
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
}

TEST_CASE("frames that break the protocol close the link and deliver nothing", "[session][rogue]") {
  struct Case {
    std::vector<std::byte> records;
    absl::string_view words;
  };
  std::vector<std::byte> truncated = Request(1, 1, "truncated");
  wire::Store(truncated.data() + 2, uint16_t{800});
  std::vector<std::byte> odd = Request(1, 1, "odd");
  wire::Store(odd.data() + 2, uint16_t{20});
  const std::vector<std::byte> good = Request(0, 1, "good");
  const Case broken[] = {
      {good + truncated, "passes the end"},
      {good + odd, "length"},
      {good + Bare(static_cast<RecordType>(0xee)), "unknown critical"},
      {std::vector<std::byte>(8), "length"},
  };
  const int index = GENERATE(range(0, 4));
  Rogue rogue;
  rogue.Prove();
  rogue.Send(broken[index].records);
  rogue.ExpectClosed(absl::StatusCode::kInvalidArgument, broken[index].words);
  CHECK(rogue.pair.sink.requests == 0);
}

TEST_CASE("records out of their order or side close the link", "[session][rogue]") {
  struct Case {
    std::vector<std::byte> records;
    absl::string_view words;
  };
  const Case broken[] = {
      {Request(0, 2, "no such method"), "never defined"},
      {Request(0, 0, "number zero"), "never defined"},
      {Request(16, 1, "slot 16 of 16"), "call slot 16"},
      {Request(5, 1, "twice") + Request(0x10005, 1, "taken"), "call slot 5"},
      {Method(3, "/a"), "METHOD 3"},
      {Method(1, "/again"), "METHOD 1"},
      {Method(2, std::string(1025, 'p')), "a path of 1025 bytes; the limit is 1024"},
      {Bare(RecordType::kReply, 0), "out of its order"},
      {Bare(RecordType::kReady), "proved"},
      {Bare(RecordType::kProved), "proved"},
  };
  const int index = GENERATE(range(0, 10));
  Rogue rogue;
  rogue.Prove();
  rogue.Send(broken[index].records);
  rogue.ExpectClosed(absl::StatusCode::kInvalidArgument, broken[index].words);
}

TEST_CASE("a request before the proof closes the link", "[session][rogue]") {
  Rogue rogue;
  rogue.Send(Method(1, "/test/Hold") + Request(0, 1, "early"));
  REQUIRE(rogue.Run([&] { return rogue.down; }));
  REQUIRE(rogue.Run([&] { return !rogue.told.ok(); }));
  CHECK(rogue.pair.sink.requests == 0);
  CHECK(rogue.pair.sink.downs == 0);
}

TEST_CASE("a peer that connects and says nothing is given up", "[session][rogue]") {
  EngineOptions options;
  options.prove_timeout = absl::Milliseconds(3);
  Rogue rogue(options);
  rogue.pair.RunFor(2'000'000);
  CHECK(rogue.told.ok());
  rogue.pair.RunFor(2'000'000);
  CHECK(rogue.told.code() == absl::StatusCode::kDeadlineExceeded);
}

TEST_CASE("credits that are taken back or invented close the link", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  rogue.granted = GENERATE(0u, 63u, 5'000u);
  rogue.Send(Request(0, 1, "x"));
  rogue.ExpectClosed(absl::StatusCode::kInvalidArgument,
                     absl::StrCat("outside of its window: ", rogue.granted, " after 64, with "));
  CHECK(rogue.pair.sink.requests == 0);
}

TEST_CASE("bad messages end their calls, not the link", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  const std::string garbage(64, '\xff');
  for (uint32_t i = 0; i < 5; ++i) {
    const uint8_t flags[] = {wire::kFlagMetadata, wire::kFlagTable, wire::kFlagBodyLeased,
                             wire::kFlagHeadLeased,
                             wire::kFlagTable | wire::kFlagMetadata | wire::kFlagExtra};
    rogue.Send(Request(i, 1, garbage, flags[i]));
  }
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 5; }));
  CHECK(rogue.pair.sink.requests == 0);
  rogue.Send(Request(9, 1, "fine"));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 6; }));
}

TEST_CASE("a table that points outside of its lease fails the fetch", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  const wire::PayloadEntry entry = rogue.Payload({{32, 4'096}});  // of a lease of 64
  wire::MessageParts parts;
  parts.table = {&entry, 1};
  rogue.Send(Request(0, 1, parts));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  memory::Block into = *memory::AllocateBlock(4'096);
  TestFetch fetch;
  fetch.pieces.push_back({&memory::HostDevice(), into.data(), 4'096});
  rogue.pair.OnServer([&] { Link::StartFetch(*rogue.pair.sink.served[0].payloads, fetch); });
  REQUIRE(rogue.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.code() == absl::StatusCode::kOutOfRange);
  CHECK_THAT(std::string(fetch.status.message()),
             Catch::ContainsSubstring("a READ of 4096 bytes at 0 of a payload of 4096"));
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
}

TEST_CASE("a payload of several pieces takes new keys, one for each", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  // Another lease of the same bytes, so that the pieces have different keys.
  const fabric::RemoteKey first = rogue.key;
  rogue.leased = false;
  rogue.mine.Lease({1, 1}, rogue.id, {0, LaneRole::kOwner, 0}, rogue.block.region(),
                   rogue.block.data() + 32, 32);
  REQUIRE(rogue.Run([&] { return rogue.leased; }));
  const wire::PayloadEntry entry = rogue.Payload({{0, 32}, {0, 32}}, /*generation=*/7);
  wire::MessageParts parts;
  parts.table = {&entry, 1};
  rogue.Send(Request(0, 1, parts));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  memory::Block into = *memory::AllocateBlock(64);
  TestFetch fetch;
  fetch.pieces.push_back({&memory::HostDevice(), into.data(), 64});
  rogue.pair.OnServer([&] { Link::StartFetch(*rogue.pair.sink.served[0].payloads, fetch); });
  const auto send_keys = [&](std::vector<wire::LeaseKey> list) {
    wire::LeaseKeys keys;
    keys.keys = std::move(list);
    std::vector<std::byte> record(wire::LeaseKeysBytes(keys.keys.size()));
    wire::WriteLeaseKeys(keys, record.data());
    rogue.Send(record);
  };
  // One key for two pieces, and keys of a lease that nobody knows. Expect: they change nothing.
  send_keys({{entry.lease, first.words}, {99, first.words}, {99, first.words}});
  rogue.Run([] { return false; });
  REQUIRE_FALSE(fetch.done());
  send_keys({{98, first.words}, {entry.lease, first.words}, {entry.lease, rogue.key.words}});
  REQUIRE(rogue.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.ok());
  CHECK(std::memcmp(into.data(), rogue.block.data(), 64) == 0);
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
}

TEST_CASE("random frames never do more than close the link", "[session][rogue]") {
  const uint32_t seed = GENERATE(range(1u, 30u));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  Rogue rogue;
  rogue.Prove();
  for (int i = 0; i < 40 && !rogue.down; ++i) {
    const RecordType types[] = {
        RecordType::kRequest,   RecordType::kCancel,    RecordType::kRelease,   RecordType::kRecall,
        RecordType::kLaneDown,  RecordType::kLaneOffer, RecordType::kLeaseKeys, RecordType::kGoAway,
        RecordType::kGoAwayAck, RecordType::kPadding};
    const RecordType type = types[random() % 10];
    std::vector<std::byte> record(16 + 8 * (random() % 12));
    for (std::byte& byte : record)
      byte = static_cast<std::byte>(random() % 3 == 0 ? random() % 256 : 0);
    wire::Store(record.data(),
                wire::RecordHeader{
                    type, static_cast<uint8_t>(random() % 2 == 0 ? 0 : random() & 0xf8),
                    static_cast<uint16_t>(record.size()), static_cast<uint32_t>(random() % 20)});
    if (type == RecordType::kRequest) wire::Store(record.data() + 8, uint32_t{1});
    rogue.Send(record);
    for (int tick = 0; tick < 60; ++tick) {
      rogue.victim.reactor().Tick();
      rogue.mine.Poll(rogue);
    }
    rogue.AnswerAll();
  }
  rogue.pair.OnServer([&] {
    if (rogue.pair.sink.link != nullptr) rogue.pair.sink.link->Close(absl::CancelledError("over"));
  });
  REQUIRE(rogue.Run([&] {
    rogue.AnswerAll();
    return rogue.pair.sink.link == nullptr;
  }));
  CHECK(rogue.pair.server->counters().calls_live == 0);
  CHECK(rogue.pair.server->counters().fetches_live == 0);
}

}  // namespace
}  // namespace verbena::session::testing
