// SIGSTOP: a process that stands still and is not dead.
#include <atomic>
#include <cstdio>

#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

const absl::Duration kLate = absl::Milliseconds(500 * kSlowdown);  // the promise is 20 ms

TEST_CASE("deadlines end the calls to a stopped server, which goes on afterwards",
          "[system][stop]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    test::Peer::Stub stub(server.ChannelOver(transport));
    REQUIRE(stub.Echo({}).Get().ok());
    server.Stop();
    const absl::Time began = absl::Now();
    std::vector<Call<test::EchoReply>> calls;
    test::EchoRequest large;
    large.set_data(std::string(1 << 20, 'x'));
    const CallOptions options = CallOptions().set_timeout(absl::Milliseconds(100));
    for (int i = 0; i < 100; ++i)
      calls.push_back(stub.Echo(i % 10 == 0 ? large : test::EchoRequest(), options));
    const absl::Time started = absl::Now();  // the large ones may have made a pool grow
    for (auto& call : calls) CHECK(absl::IsDeadlineExceeded(call.Get().status()));
    const absl::Duration took = absl::Now() - started;
    CHECK(absl::Now() - began >= absl::Milliseconds(95));
    printf("100 calls to a stopped server, deadline 100 ms, %s: ended after %.0f ms\n",
           transport.c_str(), absl::ToDoubleMilliseconds(took));
    CHECK(took < absl::Milliseconds(100) + kLate);
    server.Continue();
    REQUIRE(stub.Echo(large).Get().ok());
    REQUIRE(Within(absl::Seconds(2), [&] { return server.state().calls == 0; }));
    CHECK(server.state().leases == 0);
  }
}

TEST_CASE("a stopped reader does not hold memory past the deadline, and learns of it",
          "[system][stop]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    test::Peer::Stub stub(server.ChannelOver(transport));
    REQUIRE(stub.Echo({}).Get().ok());
    const size_t bytes = 64 << 20;
    std::atomic<bool> released{false};
    std::string memory(bytes, 'm');
    {
      // Once to the end: now the server has memory for it.
      Parcel<test::TakeRequest> first;
      first.Attach(*first->mutable_payload(), Buffer::WrapReadOnly(memory.data(), bytes, [] {}));
      REQUIRE(stub.Take(first).Get().ok());
    }
    Parcel<test::TakeRequest> request;
    request->set_times(100000);  // the server reads it again and again
    request.Attach(*request->mutable_payload(),
                   Buffer::WrapReadOnly(memory.data(), bytes, [&] { released = true; }));
    auto call = stub.Take(request, CallOptions().set_timeout(absl::Milliseconds(500)));
    request = {};
    REQUIRE(Within(absl::Seconds(5), [&] { return server.state().fetches > 0; }));
    server.Stop();
    // Expect: the deadline ends the call, and the memory is the caller's again, with the reader
    // standing in the middle of a READ.
    const absl::Time began = absl::Now();
    CHECK(absl::IsDeadlineExceeded(call.Get().status()));
    CHECK(absl::Now() - began < absl::Milliseconds(500) + kLate);
    CHECK(Within(absl::Milliseconds(100), [&] { return released.load(); }));
    // Expect: a typed error for the reader once it runs, and nothing is left of the call.
    server.Continue();
    REQUIRE(Within(absl::Seconds(5), [&] { return server.state().calls == 0; }));
    const std::string code = Fields(server.Ask("state"))["fetch"];
    INFO(code);
    CHECK((code == "CANCELLED" || code == "DATA_LOSS" || code == "UNAVAILABLE" ||
           code == "DEADLINE_EXCEEDED"));
    CHECK(server.state().fetches == 0);
    CHECK(stub.Echo({}).Get().ok());
  }
}

TEST_CASE("a client that is stopped with replies unread does not delay others, nor a drain",
          "[system][stop]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    ClientPeer stopped(server.address(), transport);
    REQUIRE(Fields(stopped.Ask("give 33554432"))["good"] == "1");
    REQUIRE(server.state().leases == 1);
    stopped.Ask("start give 1 33554432");
    ClientPeer other(server.address(), transport);
    REQUIRE(Fields(other.Ask("ready"))["code"] == "OK");
    stopped.Stop();
    CHECK(Fields(other.Ask("echo 200"))["bad"] == "0");
    // Expect: the drain waits for the leases until its deadline, then revokes them.
    const auto drained = Fields(server.Ask("drain 300"));
    REQUIRE(drained.count("drained") == 1);
    printf("drain in 300 ms with a stopped reader, %s: %s ms\n", transport.c_str(),
           drained.at("drained").c_str());
    CHECK(std::stoi(drained.at("drained")) < 300 + 1200 * kSlowdown);
    CHECK(server.state().leases == 0);
    stopped.Continue();
    const auto tally = Fields(stopped.Ask("stop"));
    CHECK(tally.at("untyped") == "0");
  }
}

}  // namespace
}  // namespace verbena::system_test
