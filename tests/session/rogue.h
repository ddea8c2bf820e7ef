#pragma once
// A peer that does not keep to the protocol: a fabric's endpoint by hand against a real engine.
#include <chrono>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "rpc/base/log.h"
#include "rpc/wire/control.h"
#include "rpc/wire/message.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {

using wire::RecordType;

inline fabric::sim::NetworkOptions Plain() {
  fabric::sim::NetworkOptions options;
  options.prepares_lanes = false;
  options.refused_read_breaks_lane = false;
  return options;
}

inline std::vector<std::byte> Bare(RecordType type, uint32_t word = 0) {
  std::vector<std::byte> record(8);
  wire::WriteBare(type, word, record.data());
  return record;
}

inline std::vector<std::byte> Method(uint32_t number, absl::string_view path) {
  std::vector<std::byte> record(wire::MethodRecordBytes(path));
  wire::WriteMethod(number, path, record.data());
  return record;
}

inline std::vector<std::byte> Request(uint32_t call, uint32_t method, absl::string_view content,
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

// A request that consists of these sections.
inline std::vector<std::byte> Request(uint32_t call, uint32_t method,
                                      const wire::MessageParts& parts) {
  std::string content(wire::SectionsBytes(parts), '\0');
  const uint8_t flags = wire::EncodeSections(parts, reinterpret_cast<std::byte*>(content.data()));
  return Request(call, method, content, flags);
}

// One end of a link, whose frames the test writes itself; the other is a real engine's, the victim.
class Rogue final : public fabric::EventSink {
 public:
  explicit Rogue(const EngineOptions& options = {}, fabric::Side side = fabric::Side::kClient,
                 const fabric::sim::NetworkOptions& network = Plain())
      : pair(network, options),
        is_client(side == fabric::Side::kClient),
        prepares_lanes(network.prepares_lanes),
        mine(is_client ? *pair.client_fabric : *pair.server_fabric),
        victim(is_client ? *pair.server : *pair.client) {
    SetLogSink([](LogLevel, absl::string_view) {});
    id = static_cast<LinkId>(77);
    victim_id = *victim.ReserveLink();
    fabric::Fabric& theirs = is_client ? *pair.server_fabric : *pair.client_fabric;
    const fabric::Side other = is_client ? fabric::Side::kServer : fabric::Side::kClient;
    fabric::Sockets none;
    auto a = mine.Prepare(id, side, "");
    auto b = theirs.Prepare(victim_id, other, a->blob);
    REQUIRE(theirs.Complete(victim_id, *a, none).ok());
    REQUIRE(mine.Complete(id, *b, none).ok());
    LinkSetup setup;
    setup.fabric = &theirs;
    setup.id = victim_id;
    setup.side = other;
    setup.info.peer = "a rogue";
    setup.open_calls_max = 16;
    InSeat([&] {
      victim.Adopt(setup, is_client ? nullptr : &pair.owner, is_client ? &pair.sink : nullptr,
                   [this](absl::StatusOr<Link*> link) { told = link.status(); });
    });
    mine.Start(id);
  }
  ~Rogue() {
    InSeat([this] {
      if (link() != nullptr) link()->Close(absl::CancelledError("over"));
    });
    AnswerAll();
    Run([this] { return link() == nullptr && victim.counters().calls_live == 0; });
    SetLogSink({});
  }

  // Says what makes the victim believe in the link.
  void Prove() {
    block = Pair::Pattern(64, 1);
    if (is_client) Send(Bare(RecordType::kReady));
    REQUIRE(Run([this] { return frames != 0; }));  // its PATTERN, or the lane for it
    if (prepares_lanes) {
      OfferLane();
      REQUIRE(Run([this] { return lane_up; }));
    }
    wire::FillPattern(9, {block.data(), 64});
    lease = LeaseSlot{0, 1};
    mine.Lease(lease, id, owner_lane, block.region(), block.data(), 64);
    REQUIRE(Run([this] { return leased; }));
    wire::PayloadEntry entry;
    entry.lease = lease.word();
    entry.bytes = 64;
    entry.lanes = 1;
    entry.key_generation = owner_lane.generation;
    entry.pieces.push_back({0, 64});
    entry.keys.push_back(key.words);
    std::vector<std::byte> pattern(wire::PatternRecordBytes(entry));
    wire::WritePattern(9, entry, pattern.data());
    REQUIRE(Run([this] { return pattern_came; }));
    Send(pattern);
    Send(Bare(RecordType::kProved));
    REQUIRE(Run([this] { return link() != nullptr; }));
    if (is_client) Send(Method(1, "/test/Hold"));
  }
  // Our leased memory as a payload of these pieces; its first keys are void where `generation` is
  // that of no lane.
  wire::PayloadEntry Payload(std::initializer_list<wire::PayloadPiece> pieces,
                             uint32_t generation = 0) const {
    wire::PayloadEntry entry;
    entry.ticket = 1;
    entry.lease = lease.word();
    entry.lanes = 1;
    entry.key_generation = generation;
    for (const wire::PayloadPiece& piece : pieces) {
      entry.bytes += piece.bytes;
      entry.pieces.push_back(piece);
      entry.keys.push_back(generation == 0 ? key.words : wire::Key{});
    }
    return entry;
  }
  // Our end of the bulk lane on which we own: prepared and offered.
  void OfferLane() {
    owner_lane.generation += 1;
    Send(LaneRecord(RecordType::kLaneOffer, owner_lane, mine.PrepareLane(id, owner_lane)->blob));
  }
  static std::vector<std::byte> LaneRecord(RecordType type, Lane lane, absl::string_view blob,
                                           Error cause = Error::kLaneDown) {
    const wire::LaneRecord record{lane.index, lane.role == LaneRole::kOwner, lane.generation,
                                  static_cast<uint32_t>(cause), blob};
    std::vector<std::byte> bytes(wire::LaneRecordBytes(record));
    wire::WriteLane(type, record, bytes.data());
    return bytes;
  }
  static std::vector<std::byte> Release(LeaseSlot slot) {
    std::vector<std::byte> record(wire::kLeaseRecordBytes);
    wire::WriteLease(RecordType::kRelease, slot.word(), true, record.data());
    return record;
  }

  void Send(absl::Span<const std::byte> records) {
    fabric::OutFrame frame;
    bool acquired = false;
    Run([&] { return acquired = acquired || mine.AcquireFrame(id, frame); });
    REQUIRE(acquired);
    frame.bytes = static_cast<uint32_t>(8 + records.size());
    wire::WriteFrameHeader(frame.data, frame.bytes, granted);
    std::memcpy(frame.data + 8, records.data(), records.size());
    mine.Send(id, {&frame, 1});
  }
  bool Run(const std::function<bool()>& done) {
    for (int i = 0; i < 5'000 && !done(); ++i) {
      victim.reactor().Tick();
      mine.Poll(*this);
      // The setup thread is a real one.
      if (i % 64 == 63) std::this_thread::sleep_for(std::chrono::microseconds(20));
    }
    return done();
  }
  // As Run, on a clock that moves fast.
  bool RunLong(const std::function<bool()>& done, int64_t ns) {
    const int64_t until = pair.network.now_ns() + ns;
    while (!done() && pair.network.now_ns() < until) {
      pair.network.Advance(ns / 200);
      victim.reactor().Tick();
      mine.Poll(*this);
    }
    return done();
  }
  // The link is closed, whoever was served hears of it, and nothing of the frame was delivered.
  void ExpectClosed(absl::StatusCode code, absl::string_view words) {
    REQUIRE(Run([this] { return down; }));
    REQUIRE(Run([this] { return link() == nullptr || !pair.sink.served.empty(); }));
    AnswerAll();
    REQUIRE(Run([this] { return pair.sink.downs + pair.owner.downs == 1; }));
    const absl::Status cause = is_client ? pair.sink.cause : pair.owner.cause;
    INFO(cause.ToString());
    CHECK(cause.code() == code);
    CHECK(std::string(cause.message()).find(std::string(words)) != std::string::npos);
    CHECK(victim.counters().leases_live == 0);
    CHECK(victim.counters().calls_live == 0);
  }
  void AnswerAll() {
    InSeat([this] {
      for (TestServed& served : pair.sink.served) {
        served.payloads.reset();
        if (served.ended == 0) served.link->Reply(served, absl::OkStatus(), {});
      }
    });
  }
  void InSeat(const std::function<void()>& f) { Pair::InSeat(victim.reactor(), f); }
  // The victim's; null once it is closed.
  Link* link() const { return is_client ? pair.sink.link : pair.owner.link; }

  void OnFrame(LinkId, absl::Span<const std::byte> frame) override {
    ++frames;
    if (grants) granted += static_cast<uint32_t>(frame.size() + 511) / 512;
    REQUIRE(wire::CheckFrame(frame) == wire::FrameError::kOk);
    for (wire::FrameCursor cursor(frame); !cursor.done();) {
      const wire::RecordHeader header = cursor.header();
      OnRecord(header.type, {cursor.data(), header.bytes});
      cursor.Next(header);
    }
  }
  void OnRecord(RecordType type, absl::Span<const std::byte> record) {
    ++came[type];
    if (type == RecordType::kReply) replies.push_back(Text(record));
    if (type == RecordType::kPattern) pattern_came = true;
    if (type == RecordType::kLaneReady) {
      const std::string blob(wire::ReadLane(record)->blob);
      lane_up = mine.CompleteLane(id, owner_lane, {blob, {}}).ok();
    }
    if (type == RecordType::kLaneOffer && answers_offers) {
      const wire::LaneRecord offer = *wire::ReadLane(record);
      reader_lane.generation = offer.generation;
      const std::string blob = mine.PrepareLane(id, reader_lane)->blob;
      REQUIRE(mine.CompleteLane(id, reader_lane, {std::string(offer.blob), {}}).ok());
      Send(LaneRecord(RecordType::kLaneReady, reader_lane, blob));
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
  const bool is_client;
  const bool prepares_lanes;
  fabric::Fabric& mine;
  Engine& victim;
  LinkId id, victim_id;
  Lane owner_lane{0, LaneRole::kOwner, 0};
  Lane reader_lane{0, LaneRole::kReader, 0};
  LeaseSlot lease;
  fabric::RemoteKey key;
  memory::Block block;
  uint32_t granted = 64;  // the window
  bool grants = false;    // what was received may be sent again
  bool answers_offers = true;
  bool lane_up = false;
  bool leased = false;
  bool pattern_came = false;
  bool down = false;
  int frames = 0;
  std::map<RecordType, int> came;
  std::vector<std::string> replies;
  absl::Status told;
};

inline std::vector<std::byte> operator+(std::vector<std::byte> a, const std::vector<std::byte>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

}  // namespace verbena::session::testing
