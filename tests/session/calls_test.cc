#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {
namespace {

TEST_CASE("a new link proves itself, then carries a small call", "[session][calls]") {
  const bool prepares_lanes = GENERATE(false, true);
  fabric::sim::NetworkOptions options;
  options.prepares_lanes = prepares_lanes;
  Pair pair(options);
  REQUIRE(pair.Connect().ok());
  TestCall call("/test/Echo");
  Outgoing request;
  request.body = Bytes("hello");
  pair.OnClient([&] {
    pair.owner.link->StartCall(call, request);
    CHECK(call.replies == 0);
  });
  REQUIRE(pair.Run([&] { return call.done(); }));
  CHECK(call.status.ok());
  CHECK(call.body == "hello");
  CHECK_FALSE(call.body_was_read);
  CHECK(pair.sink.requests == 1);
  REQUIRE(pair.Run([&] { return pair.sink.served[0].ended == 1; }));
}

}  // namespace
}  // namespace verbena::session::testing
