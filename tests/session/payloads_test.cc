// Large messages, payloads, their READs and budgets.
#include "rpc/memory/fake_device.h"
#include "rpc/memory/fake_stream.h"
#include "tests/session/payload_pair.h"

namespace verbena::session::testing {
namespace {

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
  WholeFetch fetch(held);
  HoldReads(pair);
  fetch.Start();
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

TEST_CASE("a fetch that waits for its stream takes nothing of the budget", "[session][budgets]") {
  EngineOptions options;
  options.fetching_bytes_max = 150'000;
  options.admission_timeout = absl::Milliseconds(10);
  Pair pair(Network(true), options);
  REQUIRE(pair.Connect().ok());
  Held held(pair, 150'000);
  memory::FakeDevice& device = memory::FakeDevice::Install(0);
  const absl::StatusOr<memory::Extent> extent = device.Allocate(150'000);
  REQUIRE(extent.ok());
  memory::FakeStream stream;
  stream.Launch([] {});
  WholeFetch late(held), other(held), next(held);
  late.pieces[0] = {&device, extent->base, 150'000, {&stream}};
  late.Start();
  other.Start();
  REQUIRE(pair.Run([&] { return other.done(); }));
  CHECK(other.status.ok());
  pair.RunFor(30'000'000);  // nor does the time for which it might wait for the budget pass
  CHECK_FALSE(late.done());
  pair.OnServer([&] { Link::CancelFetch(late); });
  REQUIRE(pair.Run([&] { return late.done(); }));
  CHECK(late.status.code() == absl::StatusCode::kCancelled);
  next.Start();
  REQUIRE(pair.Run([&] { return next.done(); }));
  CHECK(next.status.ok());
  held.Answer();
  REQUIRE(pair.Run([&] { return held.call.done(); }));
  held.served->payloads.reset();
  device.Free(*extent);
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
  HoldReads(pair);
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
