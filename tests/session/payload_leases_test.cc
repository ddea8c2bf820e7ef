// Leases of payloads: asked for, forced, aged; lanes that break under them.
#include "rpc/session/link_terms.h"
#include "rpc/wire/control.h"
#include "tests/session/payload_pair.h"

namespace verbena::session::testing {
namespace {

TEST_CASE("a cancel during a READ asks first: the reader drains, releases, and the call ends",
          "[session][leases]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 1'000'000);
  WholeFetch fetch(held);
  fetch.Start();
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
  WholeFetch fetch(held);
  HoldReads(pair);
  fetch.Start();
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
  WholeFetch lost(held);
  lost.destination_lent = true;
  fabric::sim::Faults faults;
  faults.read_lost = 1.0;
  pair.network.SetFaults(faults);
  lost.deadline_ns = pair.server->reactor().now_ns() + 3'000'000;
  const int64_t start_ns = pair.network.now_ns();
  lost.Start();
  while (!lost.done() && pair.network.now_ns() - start_ns < 50'000'000) pair.RunFor(100'000);
  REQUIRE(lost.done());
  CHECK(lost.status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(pair.network.now_ns() - start_ns >= 13'000'000);
  CHECK(pair.network.now_ns() - start_ns <= 25'000'000);
  // The lane has a successor with new keys.
  pair.network.SetFaults({});
  WholeFetch again(held);
  again.Start();
  REQUIRE(pair.Run([&] { return again.done(); }, 60'000));
  CHECK(again.status.ok());
  CHECK(again.Right());
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  held.served->payloads.reset();
}

TEST_CASE(
    "a broken lane is rebuilt and its transfers notice nothing; the fourth time it stays down a "
    "while",
    "[session][lanes]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  const size_t parts = GENERATE(1, 5);  // of the payload, each with a lease
  Held held(pair, 2'000'000, 1, parts);
  CHECK(pair.client->counters().leases_live == parts);
  const bool break_owner = GENERATE(false, true);
  for (uint32_t round = 1; round <= 4; ++round) {
    WholeFetch fetch(held);
    fetch.Start();
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
      CHECK(fetch.Right());
    } else {
      CHECK(fetch.status.code() == absl::StatusCode::kUnavailable);
    }
  }
  // Calls without payloads go on.
  TestCall small("/test/Echo");
  pair.OnClient([&] { pair.owner.link->StartCall(small, {}); });
  REQUIRE(pair.Run([&] { return small.done(); }));
  CHECK(small.status.ok());
  // And so do all after a while.
  pair.RunFor(limits::kLaneRebuildWindowNs + 1'000'000);
  Held later(pair, 200'000, 2, parts);
  for (Held* one : {&later, &held}) {
    WholeFetch fetch(*one);
    fetch.Start();
    REQUIRE(pair.Run([&] { return fetch.done(); }, 100'000));
    INFO((one == &later ? "later: " : "before: ") << fetch.status.ToString());
    CHECK(fetch.status.ok());
    CHECK(fetch.Right());
    one->Answer();
    REQUIRE(pair.Run([&] { return one->call.done(); }));
    one->served->payloads.reset();
  }
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
    WholeFetch fetch(held);
    fetch.Start();
    REQUIRE(pair.Run([&] { return fetch.done(); }));
    CHECK(fetch.status.ok());
    CHECK(fetch.Right());
    held.served->payloads.reset();
    held.Answer();
    REQUIRE(pair.Run([&] { return held.call.done(); }));
  }
  CHECK(pair.network.statistics().lanes_broken == broken);

  // One that is not let go costs the lane; what else is leased goes on with its successor.
  Held stuck(pair, 50'000), other(pair, 50'000, 5);
  HoldReads(pair);
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
  HoldReads(pair);
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
  OutgoingPayload payload = PayloadOf(answer, 77);
  // In several regions it has one name, by which it is recalled.
  if (GENERATE(false, true)) payload.region = Joined(answer, 5);
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

TEST_CASE("a payload in several mappings is pieces of one entry, and too many are one lease",
          "[session][leases]") {
  Pair pair(Network(false));
  REQUIRE(pair.Connect().ok());
  for (const size_t parts :
       {size_t{2}, size_t{limits::kPiecesMax}, limits::kPiecesMax + size_t{1}}) {
    INFO(parts << " parts");
    Held held(pair, 300'001, parts, parts);
    WholeFetch fetch(held);
    fetch.Start();
    REQUIRE(pair.Run([&] { return fetch.done(); }, 100'000));
    CHECK(fetch.status.ok());
    CHECK(fetch.Right());
    // Over the border of two.
    TestFetch part;
    memory::Block into = *memory::AllocateBlock(1000);
    Into(part, into, 300'001 / parts - 500);
    pair.OnServer([&] { Link::StartFetch(*held.served->payloads, part); });
    REQUIRE(pair.Run([&] { return part.done(); }));
    CHECK(part.status.ok());
    CHECK(std::memcmp(into.data(), held.block.data() + part.offset, 1000) == 0);
    held.Answer();
    REQUIRE(pair.Run([&] { return held.call.done(); }));
    held.served->payloads.reset();
    CHECK(pair.Run([&] { return pair.client->counters().leases_live == 0; }));
  }
}

TEST_CASE("a fetch ends with whatever its owner always says of its READs", "[session][transfers]") {
  Pair pair(Network(false));
  REQUIRE(pair.Connect().ok());
  Held held(pair, 200'000);
  for (const auto& [error, code] :
       {std::pair(Error::kLeaseLost, absl::StatusCode::kDataLoss),
        std::pair(Error::kOutOfBounds, absl::StatusCode::kOutOfRange),
        std::pair(Error::kUnsupported, absl::StatusCode::kUnimplemented),
        std::pair(Error::kNoMemory, absl::StatusCode::kResourceExhausted),
        std::pair(Error::kFault, absl::StatusCode::kDataLoss),
        std::pair(Error::kOk, absl::StatusCode::kOk)}) {
    fabric::sim::Faults faults;
    faults.read_answer = error;
    pair.network.SetFaults(faults);
    WholeFetch fetch(held);
    fetch.Start();
    REQUIRE(pair.Run([&] { return fetch.done(); }, 60'000));
    CHECK(fetch.status.code() == code);
  }
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  held.served->payloads.reset();
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

TEST_CASE("a lane that could not be prepared costs calls with payloads, and is made a while later",
          "[session][lanes]") {
  Pair pair(Network(true));
  REQUIRE(pair.Connect().ok());
  fabric::sim::Faults none;
  none.no_lanes = true;
  pair.network.SetFaults(none);
  pair.network.BreakLane(*pair.client_fabric, pair.client_id, {0, LaneRole::kOwner, 1});
  pair.RunFor(1'000'000);
  memory::Block block = Pair::Pattern(50'000, 1);
  const OutgoingPayload payload = PayloadOf(block, 1);
  Outgoing request;
  request.body = Bytes("no lane");
  request.payloads = {&payload, 1};
  TestCall refused("/test/Echo");
  pair.OnClient([&] { pair.owner.link->StartCall(refused, request); });
  REQUIRE(pair.Run([&] { return refused.done(); }));
  CHECK(refused.status.code() == absl::StatusCode::kUnavailable);
  pair.network.SetFaults({});
  pair.RunFor(limits::kLaneRebuildWindowNs + 1'000'000);
  Held held(pair, 50'000);
  WholeFetch fetch(held);
  fetch.Start();
  REQUIRE(pair.Run([&] { return fetch.done(); }, 50'000));
  CHECK(fetch.status.ok());
  CHECK(fetch.Right());
  CHECK(pair.owner.downs == 0);
  held.served->payloads.reset();
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
}

TEST_CASE("the smallest frame holds the keys of a payload in as many pieces as there may be",
          "[session][leases]") {
  CHECK(wire::kFrameHeaderBytes + wire::LeaseKeysBytes(limits::kPiecesMax) <= kSegmentBytesMin);
}

}  // namespace
}  // namespace verbena::session::testing
