// Peers that say what is well formed, and at the wrong time, too often, or never.
#include "absl/synchronization/notification.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/link_impl.h"
#include "tests/session/rogue.h"

namespace verbena::session::testing {
namespace {

fabric::sim::NetworkOptions WithLanes() {
  fabric::sim::NetworkOptions options = Plain();
  options.prepares_lanes = true;
  return options;
}

TEST_CASE("a lease that the peer was not told of cannot be released by it", "[session][hostile]") {
  Rogue rogue({}, fabric::Side::kServer);
  rogue.Prove();
  const memory::Block block = Pair::Pattern(50'000, 7);
  const OutgoingPayload payload{1, block.region(), block.data(), 50'000};
  const std::string body(1'000, 'b');
  std::deque<TestCall> small;
  TestCall call("/test/Hold");
  rogue.InSeat([&] {
    // The calls before it use the credits up: it is leased, and cannot leave.
    for (int i = 0; i < 100; ++i) {
      Outgoing request;
      request.body = Bytes(body);
      rogue.link()->StartCall(small.emplace_back("/test/Hold"), request);
    }
    Outgoing request;
    request.payloads = {&payload, 1};
    rogue.link()->StartCall(call, request);
  });
  REQUIRE(rogue.Run([&] { return rogue.victim.counters().leases_live == 1; }));
  rogue.Run([] { return false; });
  // RELEASE of every name that it could have.
  for (uint32_t index = 0; index < 3; ++index) {
    for (uint32_t generation = 1; generation < 12; generation += 2) {
      rogue.Send(Rogue::Release({index, generation}));
    }
  }
  rogue.Run([] { return false; });
  CHECK(rogue.victim.counters().leases_live == 1);
  // Expect: the link, and the call with its lease, are as they were.
  REQUIRE_FALSE(rogue.down);
  rogue.InSeat([&] { rogue.link()->CancelCall(call, absl::CancelledError("enough")); });
  REQUIRE(rogue.Run([&] { return call.done() && rogue.victim.counters().leases_live == 0; }));
  for (int i = 0; i < 100; ++i) {
    rogue.InSeat([&] {
      rogue.link()->CancelCall(small[static_cast<size_t>(i)], absl::CancelledError("enough"));
    });
  }
}

TEST_CASE("lanes that are offered again and again close the link", "[session][hostile]") {
  Rogue rogue({}, fabric::Side::kClient, WithLanes());
  rogue.Prove();
  rogue.grants = true;
  int sent = 0;
  for (; sent < 1'000 && !rogue.down; ++sent) {
    rogue.owner_lane.generation += 1;
    rogue.Send(Rogue::LaneRecord(RecordType::kLaneOffer, rogue.owner_lane, "anything"));
    for (int i = 0; i < 20; ++i) {
      rogue.victim.reactor().Tick();
      rogue.mine.Poll(rogue);
    }
  }
  CHECK(sent < 100);
  rogue.ExpectClosed(absl::StatusCode::kResourceExhausted, "LANE_OFFER");
}

// Keeps the setup thread until it is destroyed.
class HeldSetup {
 public:
  HeldSetup() {
    reactor::PostSetup([this] {
      held_.Notify();
      let_go_.WaitForNotification();
      over_.Notify();
    });
    held_.WaitForNotification();
  }
  ~HeldSetup() {
    let_go_.Notify();
    over_.WaitForNotification();
  }

 private:
  absl::Notification held_, let_go_, over_;
};

TEST_CASE("a lane's LANE_READY counts once, however often it is said", "[session][hostile]") {
  Rogue rogue({}, fabric::Side::kClient, WithLanes());
  rogue.Prove();
  rogue.grants = true;
  rogue.answers_offers = false;
  rogue.mine.BreakLane(rogue.id, rogue.reader_lane);
  rogue.Send(Rogue::LaneRecord(RecordType::kLaneDown, rogue.reader_lane, {}));
  REQUIRE(rogue.Run([&] { return rogue.came[RecordType::kLaneOffer] == 2; }));
  rogue.reader_lane.generation += 1;
  const std::string blob = rogue.mine.PrepareLane(rogue.id, rogue.reader_lane)->blob;
  LinkImpl& link = LinkImpl::Of(*rogue.link());
  {
    const HeldSetup held;
    std::vector<std::byte> again;
    for (int i = 0; i < 20; ++i) {
      again = again + Rogue::LaneRecord(RecordType::kLaneReady, rogue.reader_lane, blob);
    }
    rogue.Send(again);
    rogue.Run([] { return false; });
    // Expect: one job that completes it; each takes the time of a thread that all links share.
    CHECK(link.setup_jobs == 1);
  }
  REQUIRE(rogue.Run([&] { return link.lanes().owner_up(); }));
  // Nor once it is up.
  rogue.Send(Rogue::LaneRecord(RecordType::kLaneReady, rogue.reader_lane, blob));
  rogue.Run([] { return false; });
  CHECK(link.setup_jobs == 0);
  CHECK(link.lanes().owner_up());
  CHECK_FALSE(rogue.down);
}

TEST_CASE("a payload whose keys never come ends its fetches", "[session][hostile]") {
  Rogue rogue;
  rogue.Prove();
  const wire::PayloadEntry entry = rogue.Payload({{0, 64}}, /*generation=*/7);
  wire::MessageParts parts;
  parts.table = {&entry, 1};
  parts.body_leased = GENERATE(false, true);
  rogue.Send(Request(0, 1, parts));
  memory::Block into = *memory::AllocateBlock(64);
  TestFetch fetch;
  if (!parts.body_leased) {
    REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
    fetch.pieces.push_back({&memory::HostDevice(), into.data(), 64});
    rogue.InSeat([&] { Link::StartFetch(*rogue.pair.sink.served[0].payloads, fetch); });
  }
  const auto ended = [&] { return parts.body_leased ? rogue.replies.size() == 1 : fetch.done(); };
  // Expect: nothing for a while, since a lane is made again in less than that; then the end.
  CHECK_FALSE(rogue.RunLong(ended, 5'000'000'000));
  REQUIRE(rogue.RunLong(ended, 10'000'000'000));
  if (!parts.body_leased) CHECK(fetch.status.code() == absl::StatusCode::kUnavailable);
  rogue.AnswerAll();
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
  CHECK(rogue.victim.counters().fetches_live == 0);
}

TEST_CASE("a reply whose leases the peer never lets become usable does not keep them",
          "[session][hostile]") {
  EngineOptions options;
  options.reply_lease_age_max = absl::Milliseconds(50);
  Rogue rogue(options, fabric::Side::kClient, WithLanes());
  rogue.Prove();
  // Its lane goes down, and the next one is not answered.
  rogue.answers_offers = false;
  rogue.Send(Rogue::LaneRecord(RecordType::kLaneDown, rogue.reader_lane, {}));
  REQUIRE(rogue.Run([&] { return rogue.came[RecordType::kLaneOffer] == 2; }));
  rogue.Send(Request(3, 1, "hello"));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 1; }));
  const memory::Block block = Pair::Pattern(50'000, 7);
  const OutgoingPayload payload{1, block.region(), block.data(), 50'000};
  TestServed& served = rogue.pair.sink.served[0];
  rogue.InSeat([&] {
    Outgoing reply;
    reply.payloads = {&payload, 1};
    rogue.link()->Reply(served, absl::OkStatus(), reply);
  });
  REQUIRE(rogue.Run([&] { return rogue.victim.counters().leases_live == 1; }));
  CHECK_FALSE(rogue.RunLong([&] { return served.ended == 1; }, 30'000'000));
  REQUIRE(rogue.RunLong([&] { return served.ended == 1; }, 100'000'000));
  CHECK(rogue.victim.counters().leases_live == 0);
  REQUIRE(rogue.Run([&] { return rogue.replies.size() == 1; }));
}

TEST_CASE("a reply that gets no credits does not keep its leases beyond their age",
          "[session][hostile]") {
  EngineOptions options;
  options.reply_lease_age_max = absl::Milliseconds(50);
  Rogue rogue(options);
  rogue.Prove();
  for (uint32_t i = 0; i < 12; ++i) rogue.Send(Request(i, 1, "hello"));
  REQUIRE(rogue.Run([&] { return rogue.pair.sink.requests == 12; }));
  const memory::Block block = Pair::Pattern(50'000, 7);
  const OutgoingPayload payload{1, block.region(), block.data(), 50'000};
  const std::string body(4'000, 'b');
  rogue.InSeat([&] {
    for (TestServed& served : rogue.pair.sink.served) {
      Outgoing reply;
      reply.body = Bytes(body);
      if (&served == &rogue.pair.sink.served.back()) reply.payloads = {&payload, 1};
      rogue.link()->Reply(served, absl::OkStatus(), reply);
    }
  });
  REQUIRE(rogue.Run([&] { return rogue.victim.counters().leases_live == 1; }));
  const auto free = [&] { return rogue.victim.counters().leases_live == 0; };
  CHECK_FALSE(rogue.RunLong(free, 30'000'000));
  REQUIRE(rogue.RunLong(free, 100'000'000));
  // Expect: once there are credits, a status in its place.
  rogue.grants = true;
  rogue.granted += 32;
  for (int i = 0; i < 10; ++i) {
    rogue.Send(Bare(RecordType::kPadding));
    rogue.Run([ticks = 0]() mutable { return ++ticks > 200; });
  }
  REQUIRE(rogue.replies.size() == 12);
  CHECK(rogue.replies.back().find("maximum age") != std::string::npos);
}

TEST_CASE("control records that waited for credits share frames", "[session][credits]") {
  std::deque<TestCall> calls;
  Rogue rogue({}, fabric::Side::kServer);
  rogue.Prove();
  const std::string body(1'800, 'b');
  rogue.InSeat([&] {
    for (int i = 0; i < 100; ++i) {
      Outgoing request;
      request.body = Bytes(body);
      rogue.link()->StartCall(calls.emplace_back("/test/Hold"), request);
    }
  });
  rogue.Run([] { return false; });
  const int sent = rogue.came[RecordType::kRequest];
  REQUIRE(sent > 10);
  REQUIRE(sent < 16);
  // One credit is left to each tick's cancel, until none may leave any more: the rest is held back,
  // and data behind it.
  for (int i = 0; i < sent; ++i) {
    rogue.InSeat([&] {
      rogue.link()->CancelCall(calls[static_cast<size_t>(i)], absl::CancelledError("enough"));
    });
    rogue.Run([ticks = 0]() mutable { return ++ticks > 20; });
  }
  const int before = rogue.came[RecordType::kCancel];
  REQUIRE(before < sent - 4);
  const int frames = rogue.frames;
  rogue.granted += 32;
  rogue.Send(Bare(RecordType::kPadding));
  REQUIRE(rogue.Run([&] { return rogue.came[RecordType::kCancel] == sent; }));
  // Expect: far fewer frames than records, and data goes on behind them.
  CHECK(rogue.frames - frames <= 2);
  rogue.InSeat([&] {
    for (int i = sent; i < 100; ++i) {
      rogue.link()->CancelCall(calls[static_cast<size_t>(i)], absl::CancelledError("enough"));
    }
  });
}

}  // namespace
}  // namespace verbena::session::testing
