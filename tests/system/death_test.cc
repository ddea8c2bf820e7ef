// kill -9 of a server under calls, as its clients see it.
#include <atomic>
#include <cstdio>
#include <memory>

#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

// The promise is 100 ms; a loaded machine gets more.
constexpr absl::Duration kDeathMax = absl::Milliseconds(500);

std::shared_ptr<Channel> ChannelTo(const ServerPeer& server, const std::string& transport) {
  return Channel::Create(server.address(),
                         ChannelOptions().set_require_transport(transport).set_backoff(
                             absl::Milliseconds(10), absl::Milliseconds(50)));
}

// Ends of calls, counted for each.
struct Ends {
  explicit Ends(size_t count) : of(count) {}
  std::vector<std::atomic<int>> of;
  std::atomic<size_t> ended{0}, unavailable{0};
};

TEST_CASE("kill -9 of a server ends each of its calls once, at once, with UNAVAILABLE",
          "[system]") {
  for (const std::string transport : {"shm", "tcp"}) {
    for (const size_t count : {1, 100, 1000}) {
      INFO(transport << ", " << count << " calls");
      ServerPeer server;
      test::Peer::Stub stub(ChannelTo(server, transport));
      auto ends = std::make_shared<Ends>(count);
      for (size_t i = 0; i < count; ++i) {
        stub.Hold({}).Then([ends, i](absl::StatusOr<test::HoldReply> reply) {
          ends->unavailable += absl::IsUnavailable(reply.status());
          ++ends->of[i];
          ++ends->ended;
        });
      }
      REQUIRE(Within(absl::Seconds(10), [&] { return server.state().calls == count; }));
      const absl::Time killed = absl::Now();
      server.KillSoon();
      // Expect: every call ends, none twice.
      REQUIRE(Within(absl::Seconds(10), [&] { return ends->ended == count; }));
      const absl::Duration took = absl::Now() - killed;
      printf("kill -9 of the server, %s, %zu calls: all ended after %.1f ms\n", transport.c_str(),
             count, absl::ToDoubleMilliseconds(took));
      CHECK(took < kDeathMax);
      REQUIRE(ends->unavailable == count);
      absl::SleepFor(absl::Milliseconds(20));
      for (const std::atomic<int>& times : ends->of) REQUIRE(times == 1);
    }
  }
}

TEST_CASE("kill -9 of a server under READs ends them, and its successor is found", "[system]") {
  for (const std::string transport : {"shm", "tcp"}) {
    INFO(transport);
    auto server = std::make_unique<ServerPeer>();
    const std::string address = server->address();
    const std::shared_ptr<Channel> channel = ChannelTo(*server, transport);
    test::Peer::Stub stub(channel);
    test::GiveRequest request;
    request.set_bytes(64 << 20);
    absl::StatusOr<Parcel<test::GiveReply>> reply = stub.Give(request).Get();
    REQUIRE(reply.ok());
    std::vector<Call<Buffer>> fetches;
    for (int i = 0; i < 4; ++i) fetches.push_back(reply->Fetch((*reply)->payload()));
    absl::SleepFor(absl::Milliseconds(5));
    const absl::Time killed = absl::Now();
    server->Kill();
    // Expect: each fetch ends; one that was done already is good, the others say why.
    for (Call<Buffer>& fetch : fetches) {
      const absl::Status status = fetch.Get().status();
      CHECK((status.ok() || absl::IsUnavailable(status)));
    }
    CHECK(absl::Now() - killed < kDeathMax);
    CHECK(absl::IsUnavailable(reply->Fetch((*reply)->payload()).Get().status()));
    // Expect: a new server on the old address is found by the old channel.
    ServerPeer successor(address);
    REQUIRE(Within(absl::Seconds(5), [&] { return stub.Echo({}).Get().ok(); }));
    CHECK(channel->status().transport == transport);
  }
}

}  // namespace
}  // namespace verbena::system_test
