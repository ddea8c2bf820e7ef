#include <algorithm>
#include <deque>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
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

TEST_CASE("a method beyond those that a link may name is refused, the others go on",
          "[session][calls]") {
  Pair pair;
  REQUIRE(pair.Connect().ok());
  std::deque<TestCall> calls;
  pair.OnClient([&] {
    for (uint32_t i = 0; i <= limits::kMethodsPerLinkMax; ++i) {
      pair.owner.link->StartCall(calls.emplace_back(absl::StrCat("/many/", i)), {});
    }
  });
  const auto done = [&] {
    return std::all_of(calls.begin(), calls.end(), [](TestCall& call) { return call.done(); });
  };
  REQUIRE(pair.Run(done));
  CHECK(absl::IsResourceExhausted(calls.back().status));
  CHECK(std::string(calls.back().status.message()).find("4096 methods") != std::string::npos);
  CHECK(absl::IsUnimplemented(calls[limits::kMethodsPerLinkMax - 1].status));
  TestCall known("/many/7");
  pair.OnClient([&] { pair.owner.link->StartCall(known, {}); });
  REQUIRE(pair.Run([&] { return known.done(); }));
  CHECK(absl::IsUnimplemented(known.status));
}

}  // namespace
}  // namespace verbena::session::testing
