// Deadlines, cancellation, draining, death.
#include <chrono>

#include "rpc/session/listen.h"
#include "rpc/wire/control.h"
#include "tests/catch.h"
#include "tests/session/full_pool.h"
#include "tests/session/pair.h"
#include "tests/time_bounds.h"

namespace verbena::session::testing {
namespace {

TestServed& Start(Pair& pair, TestCall& call, absl::string_view body = "x") {
  const size_t before = pair.sink.served.size();
  Outgoing request;
  request.body = Bytes(body);
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return pair.sink.served.size() > before; }));
  return pair.sink.served.back();
}

TEST_CASE("an unknown method is UNIMPLEMENTED and names the path", "[session][calls]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Nothing");
  pair.OnClient([&] { pair.owner.link->StartCall(call, {}); });
  REQUIRE(pair.Run([&] { return call.done(); }));
  CHECK(call.status.code() == absl::StatusCode::kUnimplemented);
  CHECK(std::string(call.status.message()).find("/test/Nothing") != std::string::npos);
}

TEST_CASE("status, details and metadata of a reply arrive", "[session][calls]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  TestServed& served = Start(pair, call);
  absl::Status status = absl::NotFoundError("no such digit");
  status.SetPayload("type.googleapis.com/x.Y", absl::Cord("detail"));
  const std::vector<std::pair<absl::string_view, absl::string_view>> metadata = {{"trace", "1"}};
  Outgoing reply;
  reply.body = Bytes("not delivered");
  reply.metadata = metadata;
  pair.OnServer([&] { pair.sink.link->Reply(served, status, reply); });
  REQUIRE(pair.Run([&] { return call.done() && served.ended == 1; }));
  CHECK(call.status == status);
  CHECK(call.body.empty());
  REQUIRE(call.metadata.size() == 1);
  CHECK(call.metadata[0].second == "1");
}

TEST_CASE("a deadline ends the call on both sides, within the tick that sees it",
          "[session][deadlines]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  call.deadline_ns = pair.client->reactor().now_ns() + 3'000'000;
  TestServed& served = Start(pair, call);
  CHECK(served.deadline_ns > 0);
  pair.RunFor(2'500'000);
  CHECK_FALSE(call.done());
  CHECK(served.cancels == 0);
  pair.RunFor(1'000'000);
  REQUIRE(call.done());
  CHECK(call.status.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(served.cancels == 1);
  // The reply comes late: dropped without harm.
  pair.OnServer([&] { pair.sink.link->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return served.ended == 1; }));
  CHECK(call.replies == 1);
  TestCall next("/test/Echo");
  Start(pair, next, "next");
  REQUIRE(pair.Run([&] { return next.done(); }));
  CHECK(next.body == "next");
}

TEST_CASE("deadlines of many calls, some never due", "[session][deadlines]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  std::deque<TestCall> calls;
  const int64_t now = pair.client->reactor().now_ns();
  pair.OnClient([&] {
    for (int i = 0; i < 200; ++i) {
      TestCall& call = calls.emplace_back("/test/Hold");
      call.deadline_ns = i % 2 == 0 ? now + 1'000'000 * (200 - i) : 0;
      pair.owner.link->StartCall(call, {});
    }
  });
  pair.RunFor(100'500'000);
  for (int i = 0; i < 200; ++i) {
    INFO(i);
    CHECK(calls[static_cast<size_t>(i)].done() == (i % 2 == 0 && i >= 100));
  }
  pair.RunFor(110'000'000);
  for (int i = 0; i < 200; ++i) CHECK(calls[static_cast<size_t>(i)].done() == (i % 2 == 0));
  pair.OnServer([&] {
    for (TestServed& served : pair.sink.served) pair.sink.link->Reply(served, absl::OkStatus(), {});
  });
  REQUIRE(pair.Run([&] { return pair.client->counters().calls_live == 0; }));
}

TEST_CASE("a cancelled call ends once, whether its reply comes or not", "[session][cancel]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  TestServed& served = Start(pair, call);
  pair.OnClient([&] {
    pair.owner.link->CancelCall(call, absl::CancelledError("stop"));
    pair.owner.link->CancelCall(call, absl::CancelledError("again"));
    CHECK_FALSE(call.done());
  });
  REQUIRE(pair.Run([&] { return call.done() && served.cancels == 1; }));
  CHECK(call.status.message() == "stop");
  pair.OnClient([&] { pair.owner.link->CancelCall(call, absl::CancelledError("after")); });
  pair.OnServer([&] { pair.sink.link->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return served.ended == 1; }));
  CHECK(call.replies == 1);
  CHECK(served.cancels == 1);
}

TEST_CASE("calls beyond the negotiated number wait at the client and can be cancelled there",
          "[session][calls]") {
  Pair pair({}, {}, 4);
  REQUIRE(pair.Connect().ok());
  std::deque<TestCall> calls;
  pair.OnClient([&] {
    for (int i = 0; i < 8; ++i) pair.owner.link->StartCall(calls.emplace_back("/test/Hold"), {});
  });
  for (int i = 0; i < 500; ++i) pair.Tick();
  CHECK(pair.sink.requests == 4);
  pair.OnClient([&] { pair.owner.link->CancelCall(calls[5], absl::CancelledError("stop")); });
  REQUIRE(pair.Run([&] { return calls[5].done(); }));
  for (size_t i = 0; i < 7; ++i) {
    REQUIRE(pair.Run([&] { return pair.sink.served.size() > i; }));
    pair.OnServer([&] { pair.sink.link->Reply(pair.sink.served[i], absl::OkStatus(), {}); });
  }
  REQUIRE(pair.Run([&] { return pair.client->counters().calls_live == 0; }));
  CHECK(pair.sink.requests == 7);
}

// How long until all of them had ended.
double DieUnderCalls(int way) {
  Pair pair({}, {}, 8'000);
  REQUIRE(pair.Connect().ok());
  constexpr int kCalls = 5'000;
  std::deque<TestCall> calls;
  pair.OnClient([&] {
    for (int i = 0; i < kCalls; ++i)
      pair.owner.link->StartCall(calls.emplace_back("/test/Hold"), {});
  });
  REQUIRE(pair.Run([&] { return pair.sink.requests > 1'000; }, 100'000));
  const auto start = std::chrono::steady_clock::now();
  if (way == 0) pair.network.CutLink(*pair.client_fabric, pair.client_id);
  if (way == 1)
    pair.OnClient([&] { pair.owner.link->Close(absl::AbortedError("closed by hand")); });
  if (way == 2) pair.OnServer([&] { pair.sink.link->Close(absl::AbortedError("closed by hand")); });
  REQUIRE(pair.Run([&] { return pair.owner.downs == 1; }));
  const std::chrono::duration<double, std::milli> took = std::chrono::steady_clock::now() - start;
  for (const TestCall& call : calls) {
    REQUIRE(call.replies == 1);
    REQUIRE(call.status.code() == absl::StatusCode::kUnavailable);
  }
  CHECK(pair.client->counters().calls_live == 0);
  // Served calls hear of it, and are answered into the void.
  REQUIRE(pair.Run([&] { return !pair.sink.served.empty() && pair.sink.served[0].cancels == 1; }));
  CHECK(pair.sink.served[0].peer_gone);
  CHECK(pair.sink.downs == 0);
  Link* const link = pair.sink.served[0].link;
  pair.OnServer([&] {
    for (TestServed& served : pair.sink.served) link->Reply(served, absl::OkStatus(), {});
  });
  REQUIRE(pair.Run([&] { return pair.sink.downs == 1; }));
  for (const TestServed& served : pair.sink.served) {
    REQUIRE(served.ended == 1);
    REQUIRE(served.cancels == 1);
  }
  return took.count();
}

TEST_CASE("a link that dies ends thousands of calls once each, with UNAVAILABLE",
          "[session][death]") {
  const int way = GENERATE(0, 1, 2);
  INFO("way " << way);
  const double took_ms = test_bounds::BestMs("a dead link with 5,000 calls", test_bounds::kDeathMs,
                                             [&] { return DieUnderCalls(way); });
  CHECK(took_ms <= test_bounds::kDeathMs * kSlowdown);
}

TEST_CASE("a link can be made again after its death, with new handles", "[session][death]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  const memory::Block block = Pair::Pattern(50'000, 7);
  const OutgoingPayload payload{1, block.region(), block.data(), 50'000};
  TestCall call("/test/Hold");
  Outgoing request;
  request.payloads = {&payload, 1};
  pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  REQUIRE(pair.Run([&] { return pair.sink.requests == 1; }));
  TestServed& served = pair.sink.served[0];
  // The client's end dies in the middle of a READ.
  memory::Block into = *memory::AllocateBlock(50'000);
  TestFetch fetch;
  fetch.pieces.push_back({&memory::HostDevice(), into.data(), 50'000});
  pair.OnServer([&] { Link::StartFetch(*served.payloads, fetch); });
  pair.network.CutLink(*pair.client_fabric, pair.client_id);
  REQUIRE(pair.Run([&] { return fetch.done() && call.done() && served.cancels == 1; }));
  CHECK(fetch.status.code() == absl::StatusCode::kUnavailable);
  CHECK(call.status.code() == absl::StatusCode::kUnavailable);
  CHECK(pair.client->counters().leases_live == 0);
  Link* const old = served.link;
  pair.OnServer([&] { old->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return pair.sink.downs == 1 && pair.owner.downs == 1; }));

  REQUIRE(pair.Connect().ok());
  // Handles of the old link do not reach through the new one.
  TestFetch late;
  late.pieces.push_back({&memory::HostDevice(), into.data(), 50'000});
  pair.OnServer([&] { Link::StartFetch(*served.payloads, late); });
  REQUIRE(pair.Run([&] { return late.done(); }));
  CHECK(late.status.code() == absl::StatusCode::kUnavailable);
  TestCall next("/test/Echo");
  Start(pair, next, "again");
  REQUIRE(pair.Run([&] { return next.done(); }));
  CHECK(next.body == "again");
  served.payloads.reset();
}

TEST_CASE("a drained link finishes its calls, takes no new ones, and closes", "[session][drain]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  TestServed& served = Start(pair, call);
  pair.OnServer([&] { pair.sink.link->Drain(pair.server->reactor().now_ns() + 1'000'000'000); });
  REQUIRE(pair.Run([&] { return pair.owner.go_aways == 1; }));
  TestCall late("/test/Echo");
  pair.OnClient([&] { pair.owner.link->StartCall(late, {}); });
  REQUIRE(pair.Run([&] { return late.done(); }));
  CHECK(late.status.code() == absl::StatusCode::kUnavailable);
  for (int i = 0; i < 500; ++i) pair.Tick();
  CHECK(pair.owner.downs == 0);
  Outgoing reply;
  reply.body = Bytes("the last");
  pair.OnServer([&] { pair.sink.link->Reply(served, absl::OkStatus(), reply); });
  REQUIRE(pair.Run([&] { return pair.owner.downs == 1 && pair.sink.downs == 1; }));
  CHECK(call.status.ok());
  CHECK(call.body == "the last");
}

TEST_CASE("a drain that takes too long closes at its deadline", "[session][drain]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Hold");
  TestServed& served = Start(pair, call);
  Link* const link = pair.sink.link;
  pair.OnServer([&] { link->Drain(pair.server->reactor().now_ns() + 10'000'000); });
  pair.RunFor(9'000'000);
  CHECK_FALSE(call.done());
  pair.RunFor(3'000'000);
  REQUIRE(call.done());
  CHECK(call.status.code() == absl::StatusCode::kUnavailable);
  CHECK(served.peer_gone);
  pair.OnServer([&] { link->Reply(served, absl::OkStatus(), {}); });
  REQUIRE(pair.Run([&] { return pair.sink.downs == 1; }));
}

TEST_CASE("the time in which memory is made does not count against a proof", "[session][proof]") {
  EngineOptions options;
  options.prove_timeout = absl::Milliseconds(1);
  Pair pair({}, options);
  {
    const FullPool full(
        [&pair, from = pair.network.now_ns()] { return pair.network.now_ns() > from + 5'000'000; });
    CHECK(pair.Connect().ok());
  }
}

TEST_CASE("a peer that says nothing is given up at the proof's time", "[session][proof]") {
  EngineOptions options;
  options.prove_timeout = absl::Milliseconds(5);
  Pair pair({}, options);
  fabric::sim::Faults faults;
  faults.read_lost = 1.0;
  pair.network.SetFaults(faults);
  const absl::Status status = pair.Connect();
  CHECK_FALSE(status.ok());
  CHECK(pair.owner.downs == 0);
  CHECK(pair.sink.downs == 0);
  pair.network.SetFaults({});
  pair.RunFor(50'000'000);
  CHECK(pair.client->counters().leases_live == 0);
}

TEST_CASE("a link that is proved when its listener is gone is nobody's, and closes",
          "[session][life]") {
  Pair pair;
  auto* const counted = new CountedSink(pair.sink);
  counted->Add();
  // The server may be gone from now on.
  counted->Detach();
  pair.Connect(counted).IgnoreError();
  CHECK(pair.Run([&] { return pair.owner.downs == 1; }));
  CHECK(pair.Run([&] { return counted->links() == 0; }));
  CHECK(pair.sink.link == nullptr);
  CHECK(pair.sink.downs == 0);
  counted->Drop();
}

}  // namespace
}  // namespace verbena::session::testing
