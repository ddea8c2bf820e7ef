// A peer that does not keep to the protocol: a fabric's endpoint by hand against a real engine.
#include <random>

#include "rpc/base/log.h"
#include "rpc/wire/control.h"
#include "rpc/wire/message.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {
namespace {

using wire::RecordType;

fabric::sim::NetworkOptions Plain() {
  fabric::sim::NetworkOptions options;
  options.prepares_lanes = false;
  options.refused_read_breaks_lane = false;
  return options;
}

std::vector<std::byte> Bare(RecordType type, uint32_t word = 0) {
  std::vector<std::byte> record(8);
  wire::WriteBare(type, word, record.data());
  return record;
}

std::vector<std::byte> Method(uint32_t number, absl::string_view path) {
  std::vector<std::byte> record(wire::MethodRecordBytes(path));
  wire::WriteMethod(number, path, record.data());
  return record;
}

std::vector<std::byte> Request(uint32_t call, uint32_t method, absl::string_view content,
                               uint8_t flags = 0) {
  std::vector<std::byte> record(wire::RoundUp8(16 + content.size()));
  const uint8_t padding = static_cast<uint8_t>(record.size() - 16 - content.size());
  wire::Store(record.data(),
              wire::RecordHeader{RecordType::kRequest, static_cast<uint8_t>(flags | padding),
                                 static_cast<uint16_t>(record.size()), call});
  wire::Store(record.data() + 8, method);
  std::memcpy(record.data() + 16, content.data(), content.size());
  return record;
}

// The client's end of a link, whose frames the test writes itself.
class Rogue final : public fabric::EventSink {
 public:
  explicit Rogue(const EngineOptions& options = {}) : pair(Plain(), options) {
    SetLogSink([](LogLevel, absl::string_view) {});
    id = static_cast<LinkId>(77);
    server_id = *pair.server->ReserveLink();
    fabric::Sockets none;
    auto a = pair.client_fabric->Prepare(id, fabric::Side::kClient, "");
    auto b = pair.server_fabric->Prepare(server_id, fabric::Side::kServer, a->blob);
    REQUIRE(pair.server_fabric->Complete(server_id, *a, none).ok());
    REQUIRE(pair.client_fabric->Complete(id, *b, none).ok());
    LinkSetup setup;
    setup.fabric = pair.server_fabric;
    setup.id = server_id;
    setup.side = fabric::Side::kServer;
    setup.info.peer = "a rogue";
    setup.open_calls_max = 16;
    pair.OnServer([&] {
      pair.server->Adopt(setup, nullptr, &pair.sink,
                         [this](absl::StatusOr<Link*> link) { told = link.status(); });
    });
    pair.client_fabric->Start(id);
  }
  ~Rogue() {
    pair.OnServer([this] {
      if (pair.sink.link != nullptr) pair.sink.link->Close(absl::CancelledError("over"));
    });
    AnswerAll();
    Run([this] { return pair.sink.link == nullptr && pair.server->counters().calls_live == 0; });
    SetLogSink({});
  }

  // Says what makes the server believe in the link.
  void Prove() {
    block = Pair::Pattern(64, 1);
    wire::FillPattern(9, {block.data(), 64});
    lease = LeaseSlot{0, 1};
    pair.client_fabric->Lease(lease, id, {0, LaneRole::kOwner, 0}, block.region(), block.data(),
                              64);
    REQUIRE(Run([this] { return leased; }));
    wire::PayloadEntry entry;
    entry.lease = lease.word();
    entry.bytes = 64;
    entry.lanes = 1;
    entry.pieces.push_back({0, 64});
    entry.keys.push_back(key.words);
    std::vector<std::byte> pattern(wire::PatternRecordBytes(entry));
    wire::WritePattern(9, entry, pattern.data());
    Send(Bare(RecordType::kReady));
    REQUIRE(Run([this] { return frames != 0; }));  // its PATTERN
    Send(pattern);
    Send(Bare(RecordType::kProved));
    REQUIRE(Run([this] { return pair.sink.link != nullptr; }));
    Send(Method(1, "/test/Hold"));
  }

  void Send(absl::Span<const std::byte> records) {
    fabric::OutFrame frame;
    REQUIRE(pair.client_fabric->AcquireFrame(id, frame));
    frame.bytes = static_cast<uint32_t>(8 + records.size());
    wire::WriteFrameHeader(frame.data, frame.bytes, granted);
    std::memcpy(frame.data + 8, records.data(), records.size());
    pair.client_fabric->Send(id, {&frame, 1});
  }
  bool Run(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000 && !done(); ++i) {
      pair.server_reactor->Tick();
      pair.client_fabric->Poll(*this);
    }
    return done();
  }
  // The link is closed, whoever was served hears of it, and nothing of the frame was delivered.
  void ExpectClosed(absl::StatusCode code, absl::string_view words) {
    REQUIRE(Run([this] { return down; }));
    REQUIRE(Run([this] { return pair.sink.link == nullptr || !pair.sink.served.empty(); }));
    AnswerAll();
    REQUIRE(Run([this] { return pair.sink.downs == 1; }));
    INFO(pair.sink.cause.ToString());
    CHECK(pair.sink.cause.code() == code);
    CHECK(std::string(pair.sink.cause.message()).find(std::string(words)) != std::string::npos);
    CHECK(pair.server->counters().leases_live == 0);
    CHECK(pair.server->counters().calls_live == 0);
  }
  void AnswerAll() {
    pair.OnServer([this] {
      for (TestServed& served : pair.sink.served) {
        served.payloads.reset();
        if (served.ended == 0) served.link->Reply(served, absl::OkStatus(), {});
      }
    });
  }

  void OnFrame(LinkId, absl::Span<const std::byte> frame) override {
    ++frames;
    REQUIRE(wire::CheckFrame(frame) == wire::FrameError::kOk);
    for (wire::FrameCursor cursor(frame); !cursor.done();) {
      const wire::RecordHeader header = cursor.header();
      if (header.type == RecordType::kReply) replies.push_back(Text({cursor.data(), header.bytes}));
      cursor.Next(header);
    }
  }
  void OnSendable(LinkId) override {}
  void OnLeased(LeaseSlot, Error error, const fabric::RemoteKey& k) override {
    leased = error == Error::kOk;
    key = k;
  }
  void OnRevoked(LeaseSlot) override {}
  void OnReadDone(ReadSlot, Error) override {}
  void OnLaneDown(LinkId, Lane, Error) override {}
  void OnLinkDown(LinkId, const absl::Status&) override { down = true; }

  Pair pair;
  LinkId id, server_id;
  LeaseSlot lease;
  fabric::RemoteKey key;
  memory::Block block;
  uint32_t granted = 64;  // the window
  bool leased = false;
  bool down = false;
  int frames = 0;
  std::vector<std::string> replies;
  absl::Status told;
};

std::vector<std::byte> operator+(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

TEST_CASE("a peer that takes grants and gives none does not keep this side flushing",
          "[session][hostile]") {
  Rogue rogue;
  rogue.Prove();
  // Each frame consumes slots, and the grants for them use up this side's credits. Then one is due
  // that cannot leave.
  for (int i = 0; i < 100'000 && !rogue.down; ++i) {
    rogue.Send(Bare(RecordType::kCancel, 0xffff));
    rogue.pair.server_reactor->Tick();
    rogue.pair.client_fabric->Poll(rogue);
  }
  // Its own credits are used up as well, and it goes on.
  rogue.ExpectClosed(absl::StatusCode::kResourceExhausted, "more than its credits");
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
      {Bare(RecordType::kReply, 0), "out of its order"},
      {Bare(RecordType::kReady), "proved"},
      {Bare(RecordType::kProved), "proved"},
  };
  const int index = GENERATE(range(0, 9));
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
  rogue.ExpectClosed(absl::StatusCode::kInvalidArgument, "outside of its window");
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
  wire::PayloadEntry entry;
  entry.ticket = 1;
  entry.lease = rogue.lease.word();
  entry.bytes = 4'096;  // of a lease of 64
  entry.lanes = 1;
  entry.pieces.push_back({32, 4'096});
  entry.keys.push_back(rogue.key.words);
  wire::MessageParts parts;
  parts.table = {&entry, 1};
  std::string content(wire::SectionsBytes(parts), '\0');
  const uint8_t flags = wire::EncodeSections(parts, reinterpret_cast<std::byte*>(content.data()));
  rogue.Send(Request(0, 1, content, flags));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  memory::Block into = *memory::AllocateBlock(4'096);
  TestFetch fetch;
  fetch.pieces.push_back({&memory::HostDevice(), into.data(), 4'096});
  rogue.pair.OnServer([&] { Link::StartFetch(*rogue.pair.sink.served[0].payloads, fetch); });
  REQUIRE(rogue.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.code() == absl::StatusCode::kOutOfRange);
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
}

TEST_CASE("a payload of several pieces takes new keys, one for each", "[session][rogue]") {
  Rogue rogue;
  rogue.Prove();
  // Another lease of the same bytes, so that the pieces have different keys.
  const fabric::RemoteKey first = rogue.key;
  rogue.leased = false;
  rogue.pair.client_fabric->Lease({1, 1}, rogue.id, {0, LaneRole::kOwner, 0}, rogue.block.region(),
                                  rogue.block.data() + 32, 32);
  REQUIRE(rogue.Run([&] { return rogue.leased; }));
  wire::PayloadEntry entry;
  entry.ticket = 1;
  entry.lease = rogue.lease.word();
  entry.bytes = 64;
  entry.lanes = 1;
  entry.key_generation = 7;  // of a lane that is gone
  entry.pieces = {{0, 32}, {0, 32}};
  entry.keys.resize(2);
  wire::MessageParts parts;
  parts.table = {&entry, 1};
  std::string content(wire::SectionsBytes(parts), '\0');
  const uint8_t flags = wire::EncodeSections(parts, reinterpret_cast<std::byte*>(content.data()));
  rogue.Send(Request(0, 1, content, flags));
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
      rogue.pair.server_reactor->Tick();
      rogue.pair.client_fabric->Poll(rogue);
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
