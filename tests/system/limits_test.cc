// Maxima that are reached: typed errors, and the process lives on.
#include "rpc/base/limits.h"

#include <cstdio>

#include "absl/strings/str_cat.h"
#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

TEST_CASE("a server without memory refuses payloads with RESOURCE_EXHAUSTED, and lives on",
          "[system][limits]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    ClientPeer client(server.address(), transport);
    REQUIRE(Fields(client.Ask("take 1048576 1"))["good"] == "1");
    const ServerPeer::State before = server.state();
    REQUIRE(server.Ask("limit 100") == "limited");
    // Expect: what does not fit is refused and named; what fits is served, before and after.
    const std::string tally = client.Ask("take 134217728 2", absl::Seconds(60));
    INFO(tally);
    CHECK(Fields(tally)["bad"] == "2");
    CHECK(Fields(tally)["first"] == "RESOURCE_EXHAUSTED");
    CHECK(Fields(client.Ask("take 1048576 3"))["good"] == "3");
    CHECK(Fields(client.Ask("echo 100"))["bad"] == "0");
    server.ExpectReturn(before);
  }
}

constexpr uint64_t kLimit = 64 << 20;
constexpr uint64_t kTooMuch = 128 << 20;

TEST_CASE("a server whose memory is limited refuses what does not fit, naming the limit",
          "[system][limits]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server("127.0.0.1:0", {"memory", absl::StrCat(kLimit)});
    ClientPeer client(server.address(), transport);
    REQUIRE(Fields(client.Ask("take 1048576 1"))["good"] == "1");
    const ServerPeer::State before = server.state();
    const std::string taken = client.Ask(absl::StrCat("take ", kTooMuch, " 2"), absl::Seconds(60));
    INFO(taken);
    CHECK(Fields(taken)["bad"] == "2");
    CHECK(Fields(taken)["first"] == "RESOURCE_EXHAUSTED");
    CHECK(taken.find(absl::StrCat("may hold ", kLimit, " bytes")) != std::string::npos);
    CHECK(taken.find("set_memory_bytes_max") != std::string::npos);
    // Its own handler finds no memory for a reply either; what fits is served.
    const std::string given = client.Ask(absl::StrCat("give ", kTooMuch));
    INFO(given);
    CHECK(Fields(given)["first"] == "RESOURCE_EXHAUSTED");
    CHECK(Fields(client.Ask("take 1048576 3"))["good"] == "3");
    CHECK(Fields(client.Ask("echo 100"))["bad"] == "0");
    server.ExpectReturn(before);
  }
}

TEST_CASE("a client whose memory is limited gets no more than fits, naming the limit",
          "[system][limits]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    ClientPeer client(server.address(), transport,
                      {"env", absl::StrCat("VERBENA_MEMORY_BYTES_MAX=", kLimit)});
    CHECK(client.Ask("fetch 1048576") == "fetching");
    CHECK(Fields(client.Read())["code"] == "OK");
    const ServerPeer::State before = server.state();
    CHECK(client.Ask(absl::StrCat("fetch ", kTooMuch), absl::Seconds(60)) == "fetching");
    const std::string end = client.Read();
    INFO(end);
    CHECK(Fields(end)["code"] == "RESOURCE_EXHAUSTED");
    CHECK(end.find(absl::StrCat("may hold ", kLimit, " bytes")) != std::string::npos);
    CHECK(Fields(client.Ask("echo 100"))["bad"] == "0");
    CHECK(client.Ask("fetch 1048576") == "fetching");
    CHECK(Fields(client.Read())["code"] == "OK");
    CHECK(Within(absl::Seconds(2), [&] { return server.state().leases <= before.leases; }));
  }
}

TEST_CASE("a reply's tensors that nobody fetches in time go back to the server",
          "[system][limits]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server("127.0.0.1:0", {"lease_ms", "200"});
    test::Peer::Stub stub(server.ChannelOver(transport));
    test::GiveRequest request;
    request.set_bytes(1 << 20);
    const absl::Time asked = absl::Now();
    absl::StatusOr<Parcel<test::GiveReply>> reply = stub.Give(request).Get();
    REQUIRE(reply.ok());
    CHECK(reply->Fetch((*reply)->payload()).Get().ok());
    REQUIRE(Within(absl::Seconds(5), [&] { return server.state().leases == 0; }));
    CHECK(absl::Now() - asked >= absl::Milliseconds(190));
    // Expect: a typed error that says so, and the link lives.
    const absl::Status late = reply->Fetch((*reply)->payload()).Get().status();
    INFO(late.ToString());
    CHECK(absl::IsDataLoss(late));
    CHECK(stub.Echo({}).Get().ok());
  }
}

TEST_CASE("an allocation beyond the pool's limit names it", "[system][limits][pool]") {
  const absl::Status status = Buffer::Allocate(size_t{1} << 50).status();
  INFO(status.ToString());
  CHECK(absl::IsResourceExhausted(status));
}

TEST_CASE("more calls than may be open wait at the client, within their deadlines",
          "[system][limits]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    constexpr size_t kOpen = limits::kOpenCallsMax;
    ServerPeer server;
    test::Peer::Stub stub(server.ChannelOver(transport));
    std::vector<Call<test::HoldReply>> open;
    for (size_t i = 0; i < kOpen; ++i) open.push_back(stub.Hold({}));
    REQUIRE(Within(absl::Seconds(10), [&] { return server.state().calls == kOpen; }));
    // One more waits, and its deadline holds.
    const absl::Time began = absl::Now();
    CHECK(absl::IsDeadlineExceeded(
        stub.Echo({}, CallOptions().set_timeout(absl::Milliseconds(100))).Get().status()));
    CHECK(absl::Now() - began < absl::Milliseconds(100) + absl::Milliseconds(500) * kSlowdown);
    std::vector<Call<test::EchoReply>> waiting;
    for (int i = 0; i < 200; ++i) waiting.push_back(stub.Echo({}));
    absl::SleepFor(absl::Milliseconds(20));
    CHECK(server.state().calls == kOpen);
    CHECK_FALSE(waiting[0].done());
    // Room for them: all go through.
    open.erase(open.begin() + kOpen / 2, open.end());
    for (auto& call : waiting) CHECK(call.Get().ok());
    open.clear();
    CHECK(Within(absl::Seconds(5), [&] { return server.state().calls == 0; }));
  }
}

}  // namespace
}  // namespace verbena::system_test
