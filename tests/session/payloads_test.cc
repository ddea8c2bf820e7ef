// Large messages, payloads, their leases and READs.
#include <cstring>

#include "rpc/base/limits.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {
namespace {

fabric::sim::NetworkOptions Network(bool prepares_lanes, uint64_t seed = 3) {
  fabric::sim::NetworkOptions options;
  options.read_chunk_bytes = 8 * 1024;  // many chunks
  options.prepares_lanes = prepares_lanes;
  options.seed = seed;
  return options;
}

OutgoingPayload PayloadOf(const memory::Block& block, uint64_t ticket) {
  return {ticket, block.region(), block.data(), block.bytes()};
}

void Into(TestFetch& fetch, memory::Block& block, uint64_t offset = 0, uint64_t bytes = 0) {
  fetch.offset = offset;
  fetch.pieces.clear();
  fetch.pieces.push_back({&memory::HostDevice(), block.data(), bytes == 0 ? block.bytes() : bytes});
}

// A held call whose request carries one payload of `bytes`.
struct Held {
  Held(Pair& p, size_t bytes, uint64_t seed = 1)
      : pair(p), call("/test/Hold"), block(Pair::Pattern(bytes, seed)) {
    payload = PayloadOf(block, 42);
    Outgoing request;
    request.body = Bytes("held");
    request.payloads = {&payload, 1};
    const size_t before = pair.sink.served.size();
    pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
    REQUIRE(pair.Run([&] { return pair.sink.served.size() > before; }));
    served = &pair.sink.served.back();
  }
  void Answer(const absl::Status& status = absl::OkStatus(), const Outgoing& reply = {}) {
    pair.OnServer([&] { served->link->Reply(*served, status, reply); });
  }
  Pair& pair;
  TestCall call;
  memory::Block block;
  OutgoingPayload payload;
  TestServed* served = nullptr;
};

TEST_CASE("a large body is READ by the receiver, both ways", "[session][payloads]") {
  Pair pair(Network(GENERATE(false, true)));
  REQUIRE(pair.Connect().ok());
  const size_t bytes = GENERATE(9'000, 300'000);
  const memory::Block block = Pair::Pattern(bytes, 7);
  TestCall call("/test/Echo");
  Outgoing request;
  request.body = {block.data(), bytes};
  request.body_region = block.region();
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return call.done(); }, 50'000));
  INFO(call.status.ToString());
  REQUIRE(call.status.ok());
  CHECK(pair.sink.served[0].body_was_read);
  CHECK(call.body_was_read);
  CHECK(call.body == Text({block.data(), bytes}));
  // The reply's lease goes back as well.
  REQUIRE(pair.Run([&] { return pair.sink.served[0].ended == 1; }));
}

TEST_CASE("metadata that does not fit a frame travels by READ", "[session][payloads]") {
  fabric::sim::NetworkOptions network = Network(true);
  network.segment_bytes = 1024;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  const std::string value(6'000, 'v');
  const std::vector<std::pair<absl::string_view, absl::string_view>> metadata = {{"x-large", value},
                                                                                 {"y", "z"}};
  TestCall call("/test/Echo");
  Outgoing request;
  request.body = Bytes("small");
  request.metadata = metadata;
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return call.done(); }));
  REQUIRE(call.status.ok());
  CHECK(call.body == "small");
  REQUIRE(call.metadata.size() == 2);
  CHECK(call.metadata[0].second == value);
  REQUIRE(pair.Run([&] { return pair.sink.served[0].ended == 1; }));

  // Beyond the limit it is refused before anything leaves.
  const std::string huge(limits::kMetadataBytesMax, 'v');
  const std::vector<std::pair<absl::string_view, absl::string_view>> too_much = {{"x", huge}};
  TestCall refused("/test/Echo");
  request.metadata = too_much;
  pair.OnClient([&] {
    pair.owner.link->StartCall(refused, request);
    CHECK_FALSE(refused.done());
  });
  REQUIRE(pair.Run([&] { return refused.done(); }));
  CHECK(refused.status.code() == absl::StatusCode::kResourceExhausted);
}

TEST_CASE("an over-limit body is refused by name before it is READ", "[session][payloads]") {
  Pair pair(Network(true));
  pair.sink.request_bytes_max = 20'000;
  REQUIRE(pair.Connect().ok());
  const memory::Block block = Pair::Pattern(30'000, 7);
  TestCall call("/test/Echo");
  Outgoing request;
  request.body = {block.data(), block.bytes()};
  request.body = request.body.first(30'000);
  request.body_region = block.region();
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return call.done(); }));
  CHECK(call.status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(call.status.message()).find("20000") != std::string::npos);
  CHECK(pair.sink.requests == 0);

  // The reply's limit, inline and by READ.
  for (const size_t bytes : {size_t{2'000}, size_t{15'000}}) {
    TestCall small("/test/Echo");
    small.reply_bytes_max = 1'000;
    request.body = {block.data(), bytes};
    pair.OnClient([&] { pair.owner.link->StartCall(small, request); });
    REQUIRE(pair.Run([&] { return small.done(); }));
    CHECK(small.status.code() == absl::StatusCode::kResourceExhausted);
  }
  REQUIRE(pair.Run([&] { return pair.server->counters().leases_live == 0; }));
}

TEST_CASE("the server fetches a payload, whole and in part; the reply releases it",
          "[session][payloads]") {
  Pair pair(Network(GENERATE(false, true)));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 500'000);
  REQUIRE(held.served->payloads != nullptr);
  CHECK(held.served->payloads->entries()[0].ticket == 42);
  CHECK(held.served->payloads->transport() == "sim");
  memory::Block into = *memory::AllocateBlock(500'000);
  memory::Block part = *memory::AllocateBlock(1'000);
  TestFetch whole, slice, outside;
  Into(whole, into, 0, 500'000);
  Into(slice, part, 123'456, 1'000);
  Into(outside, part, 499'500, 1'000);
  pair.OnServer([&] {
    Link::StartFetch(*held.served->payloads, whole);
    Link::StartFetch(*held.served->payloads, slice);
    Link::StartFetch(*held.served->payloads, outside);
    CHECK_FALSE(outside.done());
  });
  REQUIRE(pair.Run([&] { return whole.done() && slice.done() && outside.done(); }, 60'000));
  CHECK(whole.status.ok());
  CHECK(slice.status.ok());
  CHECK(outside.status.code() == absl::StatusCode::kOutOfRange);
  CHECK(std::memcmp(into.data(), held.block.data(), 500'000) == 0);
  CHECK(std::memcmp(part.data(), held.block.data() + 123'456, 1'000) == 0);
  CHECK(pair.client->counters().leases_live == 1);
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  CHECK(held.call.status.ok());
  CHECK(pair.client->counters().leases_live == 0);
  // A set outlives its call, its leases do not.
  TestFetch late;
  Into(late, part);
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, late); });
  REQUIRE(pair.Run([&] { return late.done(); }));
  CHECK(late.status.code() == absl::StatusCode::kCancelled);
  held.served->payloads.reset();
}

TEST_CASE("a fetch gathers into many pieces, and too many are refused", "[session][payloads]") {
  Pair pair(Network(false));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 200'000);
  memory::Block into = *memory::AllocateBlock(200'000);
  TestFetch fetch, many;
  for (size_t at = 0; at < 200'000; at += 1'000) {
    // Backwards in memory.
    fetch.pieces.push_back({&memory::HostDevice(), into.data() + 199'000 - at, 1'000});
  }
  for (uint32_t i = 0; i <= limits::kFetchPiecesMax; ++i)
    many.pieces.push_back({&memory::HostDevice(), into.data(), 1});
  pair.OnServer([&] {
    Link::StartFetch(*held.served->payloads, fetch);
    Link::StartFetch(*held.served->payloads, many);
  });
  REQUIRE(pair.Run([&] { return fetch.done() && many.done(); }, 60'000));
  REQUIRE(fetch.status.ok());
  CHECK(many.status.code() == absl::StatusCode::kResourceExhausted);
  for (size_t at = 0; at < 200'000; at += 1'000) {
    REQUIRE(std::memcmp(into.data() + 199'000 - at, held.block.data() + at, 1'000) == 0);
  }
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
}

TEST_CASE("a reply leaves only when READs of its request's payloads have drained",
          "[session][payloads]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 300'000);
  memory::Block into = *memory::AllocateBlock(300'000);
  TestFetch fetch;
  Into(fetch, into, 0, 300'000);
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, fetch); });
  for (int i = 0; i < 200; ++i) pair.Tick();
  // The handler answers although its fetch is under way.
  held.Answer();
  // Expect: neither the fetch nor the call ends while chunks are posted.
  for (int i = 0; i < 2'000; ++i) pair.Tick();
  CHECK_FALSE(fetch.done());
  CHECK_FALSE(held.call.done());
  pair.network.SetFaults({});
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  CHECK(fetch.status.code() == absl::StatusCode::kCancelled);
  CHECK(held.call.status.ok());
  held.served->payloads.reset();
}

TEST_CASE("a cancel during a READ asks first: the reader drains, releases, and the call ends",
          "[session][leases]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000'000);
  memory::Block into = *memory::AllocateBlock(1'000'000);
  TestFetch fetch;
  Into(fetch, into, 0, 1'000'000);
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, fetch); });
  for (int i = 0; i < 20; ++i) pair.Tick();
  REQUIRE_FALSE(fetch.done());
  REQUIRE(pair.server->counters().reads > 1);
  pair.OnClient([&] {
    pair.owner.link->CancelCall(held.call, absl::CancelledError("enough"));
    CHECK_FALSE(held.call.done());
  });
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  CHECK(held.call.status.code() == absl::StatusCode::kCancelled);
  CHECK(fetch.status.code() == absl::StatusCode::kCancelled);
  CHECK(held.served->cancels == 1);
  CHECK_FALSE(held.served->peer_gone);
  CHECK(pair.client->counters().leases_forced == 0);
  CHECK(pair.client->counters().leases_live == 0);
  held.Answer();
  REQUIRE(pair.Run([&] { return held.served->ended == 1; }));
  CHECK(held.call.replies == 1);
  held.served->payloads.reset();
}

TEST_CASE("a reader that does not let go is forced after the grace", "[session][leases]") {
  Pair pair(Network(GENERATE(false, true)));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000'000);
  memory::Block into = *memory::AllocateBlock(1'000'000);
  TestFetch fetch;
  Into(fetch, into, 0, 1'000'000);
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, fetch); });
  for (int i = 0; i < 50; ++i) pair.Tick();
  const int64_t start_ns = pair.network.now_ns();
  pair.OnClient([&] { pair.owner.link->CancelCall(held.call, absl::CancelledError("enough")); });
  while (!held.call.done() && pair.network.now_ns() - start_ns < 20'000'000) pair.RunFor(100'000);
  // The call ends although READs are still posted: its memory is free by force.
  REQUIRE(held.call.done());
  CHECK(pair.network.now_ns() - start_ns >= 5'000'000);
  CHECK(pair.client->counters().leases_forced == 1);
  CHECK_FALSE(fetch.done());
  pair.network.SetFaults({});
  REQUIRE(pair.Run([&] { return fetch.done(); }, 60'000));
  CHECK_FALSE(fetch.status.ok());
  held.Answer();
  REQUIRE(pair.Run([&] { return held.served->ended == 1; }, 60'000));
  held.served->payloads.reset();
}

TEST_CASE("READs that are lost end with their lane, 10 ms for lent memory, and fetches go on",
          "[session][transfers]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 200'000);
  memory::Block into = *memory::AllocateBlock(200'000);
  TestFetch lost;
  Into(lost, into, 0, 200'000);
  lost.destination_lent = true;
  fabric::sim::Faults faults;
  faults.read_lost = 1.0;
  pair.network.SetFaults(faults);
  lost.deadline_ns = pair.server->reactor().now_ns() + 3'000'000;
  const int64_t start_ns = pair.network.now_ns();
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, lost); });
  while (!lost.done() && pair.network.now_ns() - start_ns < 50'000'000) pair.RunFor(100'000);
  REQUIRE(lost.done());
  CHECK(lost.status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(pair.network.now_ns() - start_ns >= 13'000'000);
  CHECK(pair.network.now_ns() - start_ns <= 25'000'000);
  // The lane has a successor with new keys.
  pair.network.SetFaults({});
  TestFetch again;
  Into(again, into, 0, 200'000);
  pair.OnServer([&] { Link::StartFetch(*held.served->payloads, again); });
  REQUIRE(pair.Run([&] { return again.done(); }, 60'000));
  CHECK(again.status.ok());
  CHECK(std::memcmp(into.data(), held.block.data(), 200'000) == 0);
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  held.served->payloads.reset();
}

TEST_CASE(
    "a broken lane is rebuilt and its transfers notice nothing; the fourth time it stays down",
    "[session][lanes]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 2'000'000);
  const bool break_owner = GENERATE(false, true);
  for (uint32_t round = 1; round <= 4; ++round) {
    memory::Block into = *memory::AllocateBlock(2'000'000);
    TestFetch fetch;
    Into(fetch, into, 0, 2'000'000);
    pair.OnServer([&] { Link::StartFetch(*held.served->payloads, fetch); });
    for (int i = 0; i < 40; ++i) pair.Tick();
    REQUIRE_FALSE(fetch.done());
    if (break_owner) {
      pair.network.BreakLane(*pair.client_fabric, pair.client_id, {0, LaneRole::kOwner, round});
    } else {
      pair.network.BreakLane(*pair.server_fabric, pair.server_id, {0, LaneRole::kReader, round});
    }
    REQUIRE(pair.Run([&] { return fetch.done(); }, 100'000));
    INFO("round " << round << ": " << fetch.status.ToString());
    if (round <= 3) {
      CHECK(fetch.status.ok());
      CHECK(std::memcmp(into.data(), held.block.data(), 2'000'000) == 0);
    } else {
      CHECK(fetch.status.code() == absl::StatusCode::kUnavailable);
    }
  }
  // Calls without payloads go on.
  TestCall small("/test/Echo");
  pair.OnClient([&] { pair.owner.link->StartCall(small, {}); });
  REQUIRE(pair.Run([&] { return small.done(); }));
  CHECK(small.status.ok());
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  held.served->payloads.reset();
}

TEST_CASE("where only its lane's end takes a lease back, calls that end in order break none",
          "[session][lanes]") {
  fabric::sim::NetworkOptions network = Network(true);
  network.revocation = fabric::Revocation::kLane;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  const uint64_t broken = pair.network.statistics().lanes_broken;
  for (uint64_t round = 0; round < 12; ++round) {
    Held held(pair, 50'000, round);
    memory::Block into = *memory::AllocateBlock(50'000);
    TestFetch fetch;
    Into(fetch, into, 0, 50'000);
    pair.OnServer([&] { Link::StartFetch(*held.served->payloads, fetch); });
    REQUIRE(pair.Run([&] { return fetch.done(); }));
    CHECK(fetch.status.ok());
    CHECK(std::memcmp(into.data(), held.block.data(), 50'000) == 0);
    held.served->payloads.reset();
    held.Answer();
    REQUIRE(pair.Run([&] { return held.call.done(); }));
  }
  CHECK(pair.network.statistics().lanes_broken == broken);

  // One that is not let go costs the lane; what else is leased goes on with its successor.
  Held stuck(pair, 50'000), other(pair, 50'000, 5);
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
  memory::Block into = *memory::AllocateBlock(50'000), beside = *memory::AllocateBlock(50'000);
  TestFetch lost, fetch;
  Into(lost, into, 0, 50'000);
  Into(fetch, beside, 0, 50'000);
  pair.OnServer([&] {
    Link::StartFetch(*stuck.served->payloads, lost);
    Link::StartFetch(*other.served->payloads, fetch);
  });
  for (int i = 0; i < 50; ++i) pair.Tick();
  pair.OnClient([&] { pair.owner.link->CancelCall(stuck.call, absl::CancelledError("enough")); });
  const int64_t start_ns = pair.network.now_ns();
  while (!stuck.call.done() && pair.network.now_ns() - start_ns < 20'000'000) pair.RunFor(100'000);
  REQUIRE(stuck.call.done());
  CHECK(pair.network.statistics().lanes_broken > broken);
  pair.network.SetFaults({});
  REQUIRE(pair.Run([&] { return lost.done() && fetch.done(); }, 60'000));
  CHECK_FALSE(lost.status.ok());
  CHECK(fetch.status.ok());
  CHECK(std::memcmp(beside.data(), other.block.data(), 50'000) == 0);
  for (Held* held : {&stuck, &other}) {
    held->served->payloads.reset();
    held->Answer();
  }
  REQUIRE(pair.Run([&] { return other.call.done() && stuck.served->ended == 1; }, 60'000));
}

TEST_CASE("a lane that breaks under a message whose table is READ costs it nothing",
          "[session][lanes]") {
  fabric::sim::NetworkOptions network = Network(true);
  network.segment_bytes = 1'024;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  const bool break_owner = GENERATE(false, true);
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
  const std::string value(6'000, 'v');
  const std::vector<std::pair<absl::string_view, absl::string_view>> metadata = {{"x", value}};
  const memory::Block block = Pair::Pattern(50'000, 3);
  const OutgoingPayload payload = PayloadOf(block, 42);
  TestCall call("/test/Hold");
  Outgoing request;
  request.body = Bytes("held");
  request.metadata = metadata;
  request.payloads = {&payload, 1};
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  for (int i = 0; i < 200; ++i) pair.Tick();
  REQUIRE(pair.sink.requests == 0);  // metadata and table are under way
  if (break_owner) {
    pair.network.BreakLane(*pair.client_fabric, pair.client_id, {0, LaneRole::kOwner, 1});
  } else {
    pair.network.BreakLane(*pair.server_fabric, pair.server_id, {0, LaneRole::kReader, 1});
  }
  for (int i = 0; i < 200; ++i) pair.Tick();
  pair.network.SetFaults({});
  REQUIRE(pair.Run([&] { return pair.sink.requests == 1; }));
  // The table names keys of the lane that broke; new ones came before it did.
  TestServed& served = pair.sink.served.back();
  memory::Block into = *memory::AllocateBlock(50'000);
  TestFetch fetch;
  Into(fetch, into, 0, 50'000);
  pair.OnServer([&] { Link::StartFetch(*served.payloads, fetch); });
  REQUIRE(pair.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.ok());
  CHECK(std::memcmp(into.data(), block.data(), 50'000) == 0);
  served.payloads.reset();
  pair.OnServer([&] { served.link->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return call.done(); }));
}

TEST_CASE("a reply whose table is READ when its leases cannot be made again ends its call",
          "[session][lanes]") {
  fabric::sim::NetworkOptions network = Network(true);
  network.segment_bytes = 1'024;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  pair.OnClient([&] { pair.owner.link->StartCall(call, {}); });
  REQUIRE(pair.Run([&] { return pair.sink.requests == 1; }));
  TestServed& served = pair.sink.served.back();
  fabric::sim::Faults faults;
  faults.hold_reads = true;
  pair.network.SetFaults(faults);
  const std::string value(6'000, 'v');
  const std::vector<std::pair<absl::string_view, absl::string_view>> metadata = {{"x", value}};
  const memory::Block block = Pair::Pattern(50'000, 3);
  const OutgoingPayload payload = PayloadOf(block, 42);
  Outgoing reply;
  reply.metadata = metadata;
  reply.payloads = {&payload, 1};
  pair.OnServer([&] { served.link->Reply(served, absl::OkStatus(), reply); });
  for (int i = 0; i < 200; ++i) pair.Tick();
  REQUIRE_FALSE(call.done());
  faults.lease_refused = 1.0;
  pair.network.SetFaults(faults);
  pair.network.BreakLane(*pair.server_fabric, pair.server_id, {0, LaneRole::kOwner, 1});
  REQUIRE(pair.Run([&] { return call.done(); }));
  CHECK(call.status.code() == absl::StatusCode::kDataLoss);
  REQUIRE(pair.Run([&] { return served.ended == 1; }));
}

TEST_CASE("a reply's payloads live until the client releases them", "[session][leases]") {
  Pair pair(Network(GENERATE(false, true)));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000);
  const memory::Block answer = Pair::Pattern(150'000, 9);
  const OutgoingPayload payload = PayloadOf(answer, 77);
  Outgoing reply;
  reply.payloads = {&payload, 1};
  held.Answer(absl::OkStatus(), reply);
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  REQUIRE(held.call.payloads != nullptr);
  CHECK(held.served->ended == 0);
  memory::Block into = *memory::AllocateBlock(150'000);
  TestFetch fetch;
  Into(fetch, into, 0, answer.bytes());
  pair.OnClient([&] { Link::StartFetch(*held.call.payloads, fetch); });
  REQUIRE(pair.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.ok());
  CHECK(std::memcmp(into.data(), answer.data(), 150'000) == 0);
  CHECK(pair.server->counters().leases_live == 1);
  // Dropping the set is releasing it.
  held.call.payloads.reset();
  REQUIRE(pair.Run([&] { return held.served->ended == 1; }));
  CHECK(pair.server->counters().leases_live == 0);
}

TEST_CASE("a reply's leases have a maximum age: the reader is asked, then its fetches fail",
          "[session][leases]") {
  EngineOptions options;
  options.reply_lease_age_max = absl::Milliseconds(50);
  Pair pair(Network(true), options);
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000);
  const memory::Block answer = Pair::Pattern(100'000, 9);
  const OutgoingPayload payload = PayloadOf(answer, 77);
  Outgoing reply;
  reply.payloads = {&payload, 1};
  held.Answer(absl::OkStatus(), reply);
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  pair.RunFor(40'000'000);
  CHECK(held.served->ended == 0);
  pair.RunFor(30'000'000);
  CHECK(held.served->ended == 1);
  CHECK(pair.server->counters().leases_forced == 0);
  memory::Block into = *memory::AllocateBlock(100'000);
  TestFetch late;
  Into(late, into, 0, answer.bytes());
  pair.OnClient([&] { Link::StartFetch(*held.call.payloads, late); });
  REQUIRE(pair.Run([&] { return late.done(); }));
  CHECK(late.status.code() == absl::StatusCode::kDataLoss);
  held.call.payloads.reset();
}

TEST_CASE("payloads of a reply that nobody waits for go back at once", "[session][leases]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000);
  const memory::Block answer = Pair::Pattern(100'000, 9);
  const OutgoingPayload payload = PayloadOf(answer, 77);
  Outgoing reply;
  reply.payloads = {&payload, 1};
  // The reply and the cancel cross.
  held.Answer(absl::OkStatus(), reply);
  pair.OnClient([&] { pair.owner.link->CancelCall(held.call, absl::CancelledError("late")); });
  REQUIRE(pair.Run([&] { return held.call.done() && held.served->ended == 1; }));
  CHECK(held.call.replies == 1);
}

TEST_CASE("a fabric that cannot lease ends the call, not the link", "[session][leases]") {
  Pair pair(Network(false));
  REQUIRE(pair.Connect().ok());
  fabric::sim::Faults refuse;
  refuse.lease_refused = 1.0;
  pair.network.SetFaults(refuse);
  const memory::Block block = Pair::Pattern(20'000, 7);
  TestCall call("/test/Echo");
  Outgoing request;
  request.body = {block.data(), 20'000};
  request.body_region = block.region();
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return call.done(); }));
  CHECK(call.status.code() == absl::StatusCode::kResourceExhausted);
  pair.network.SetFaults({});
  TestCall next("/test/Echo");
  pair.OnClient([&] { pair.owner.link->StartCall(next, request); });
  REQUIRE(pair.Run([&] { return next.done(); }, 50'000));
  CHECK(next.status.ok());
}

TEST_CASE("budgets: too large is refused by name, too much at once waits", "[session][budgets]") {
  EngineOptions options;
  options.announced_bytes_max = 300'000;
  options.fetching_bytes_max = 150'000;
  Pair pair(Network(true), options);
  REQUIRE(pair.Connect().ok());
  // More than the budget can ever hold.
  const memory::Block huge = Pair::Pattern(400'000, 2);
  const OutgoingPayload payload = PayloadOf(huge, 1);
  TestCall refused("/test/Hold");
  Outgoing request;
  request.payloads = {&payload, 1};
  pair.OnClient([&] { pair.owner.link->StartCall(refused, request); });
  REQUIRE(pair.Run([&] { return refused.done(); }));
  CHECK(refused.status.code() == absl::StatusCode::kResourceExhausted);
  CHECK(std::string(refused.status.message()).find("announced_bytes_max") != std::string::npos);

  // The second call waits until the first has ended.
  Held first(pair, 200'000);
  const memory::Block second_block = Pair::Pattern(200'000, 3);
  const OutgoingPayload second_payload = PayloadOf(second_block, 2);
  TestCall second("/test/Hold");
  request.payloads = {&second_payload, 1};
  pair.OnClient([&] { pair.owner.link->StartCall(second, request); });
  for (int i = 0; i < 2'000; ++i) pair.Tick();
  CHECK(pair.sink.served.size() == 1);

  // Fetches beyond their budget: one is refused, one waits for the other and times out while that
  // is held.
  memory::Block into = *memory::AllocateBlock(400'000);
  TestFetch all, one, two;
  Into(all, into, 0, 200'000);
  Into(one, into, 0, 100'000);
  Into(two, into, 100'000, 100'000);
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
  pair.OnServer([&] {
    Link::StartFetch(*first.served->payloads, all);
    Link::StartFetch(*first.served->payloads, one);
    Link::StartFetch(*first.served->payloads, two);
  });
  REQUIRE(pair.Run([&] { return all.done(); }));
  CHECK(all.status.code() == absl::StatusCode::kResourceExhausted);
  pair.network.Advance(11'000'000'000);
  REQUIRE(pair.Run([&] { return two.done(); }));
  CHECK(two.status.code() == absl::StatusCode::kResourceExhausted);
  CHECK_FALSE(one.done());
  pair.network.SetFaults({});
  REQUIRE(pair.Run([&] { return one.done(); }, 60'000));
  CHECK(one.status.ok());

  first.Answer();
  REQUIRE(pair.Run([&] { return pair.sink.served.size() == 2; }, 60'000));
  pair.OnServer([&] { pair.sink.link->Reply(pair.sink.served[1], absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return second.done(); }));
  CHECK(second.status.ok());
  first.served->payloads.reset();
  pair.sink.served[1].payloads.reset();
}

TEST_CASE("empty payloads need no lease", "[session][payloads]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  OutgoingPayload nothing;
  nothing.ticket = 8;
  Outgoing request;
  request.payloads = {&nothing, 1};
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return pair.sink.requests == 1; }));
  TestServed& served = pair.sink.served[0];
  REQUIRE(served.payloads != nullptr);
  CHECK(served.payloads->entries()[0].ticket == 8);
  TestFetch fetch;
  pair.OnServer([&] { Link::StartFetch(*served.payloads, fetch); });
  REQUIRE(pair.Run([&] { return fetch.done(); }));
  CHECK(fetch.status.ok());
  pair.OnServer([&] { pair.sink.link->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return call.done(); }));
  served.payloads.reset();
}

}  // namespace
}  // namespace verbena::session::testing
