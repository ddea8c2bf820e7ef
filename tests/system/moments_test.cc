// kill -9 while a link is between two states: a lane is made again, a server drains.
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/time_bounds.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

using test_bounds::BestMs;
using test_bounds::kDeathMs;

double MsSince(absl::Time then) { return absl::ToDoubleMilliseconds(absl::Now() - then); }

TEST_CASE("kill -9 of an owner while its lane is made again ends what waits for the lane",
          "[system][kill][tcp]") {
  constexpr size_t kBytes = 64 << 20;
  // There READs stand still when their owner does, and lanes are made.
  const double best_ms = BestMs("kill -9 while a lane is rebuilt, tcp", kDeathMs, [&] {
    ServerPeer server;
    test::Peer::Stub stub(server.ChannelOver("tcp"));
    test::GiveRequest request;
    request.set_bytes(kBytes);
    const absl::StatusOr<Parcel<test::GiveReply>> reply = stub.Give(request).Get();
    REQUIRE(reply.ok());
    const absl::StatusOr<Buffer> warm = reply->Fetch((*reply)->payload()).Get();
    REQUIRE(warm.ok());
    const Tensor lent = *Tensor::Empty(kUInt8, Shape(static_cast<int64_t>(kBytes)));
    server.Stop();
    // Expect: the lane is broken for the first, which does not own its memory; the second waits.
    auto first = reply->Fetch((*reply)->payload(), Placement::Into(lent));
    auto second = reply->Fetch((*reply)->payload());
    absl::SleepFor(absl::Milliseconds(20));
    first.Cancel();
    REQUIRE(Within(absl::Seconds(5), [&] { return first.done(); }));
    CHECK(absl::IsCancelled(first.Get().status()));
    absl::SleepFor(absl::Milliseconds(20));
    REQUIRE_FALSE(second.done());
    const absl::Time killed = absl::Now();
    server.KillSoon();
    CHECK(absl::IsUnavailable(second.Get().status()));
    return MsSince(killed);
  });
  CHECK(best_ms <= kDeathMs * kSlowdown);
}

TEST_CASE("kill -9 of a server that drains ends the calls that it let finish", "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    const std::string what = absl::StrCat("kill -9 of a draining server, ", transport);
    INFO(what);
    const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
      ServerPeer server;
      const std::shared_ptr<Channel> channel = server.ChannelOver(transport);
      test::Peer::Stub stub(channel);
      auto held = stub.Hold({});
      REQUIRE(Within(absl::Seconds(5), [&] { return server.state().calls == 1; }));
      server.Send("drain 20000");
      // The client has heard of it when the channel has no link any more.
      REQUIRE(Within(absl::Seconds(5),
                     [&] { return channel->status().state != ChannelStatus::State::kReady; }));
      REQUIRE_FALSE(held.done());
      const absl::Time killed = absl::Now();
      server.KillSoon();
      CHECK(absl::IsUnavailable(held.Get().status()));
      const double took_ms = MsSince(killed);
      CHECK(absl::IsUnavailable(stub.Echo({}).Get().status()));
      return took_ms;
    });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of the clients that a drain waits for ends the drain", "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    for (const std::string load : {"hold", "give"}) {
      const std::string what = absl::StrCat("kill -9 under a drain, ", load, ", ", transport);
      INFO(what);
      const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
        ServerPeer server;
        ClientPeer client(server.address(), transport);
        if (load == "give") {
          REQUIRE(Fields(client.Ask("give 1048576"))["good"] == "1");
          REQUIRE(Within(absl::Seconds(5), [&] { return server.state().leases == 1; }));
        } else {
          client.Ask("start hold 1");
          REQUIRE(Within(absl::Seconds(5), [&] { return server.state().calls == 1; }));
        }
        server.Send("drain 20000");
        CHECK(server.Read(absl::Milliseconds(50)) == "");
        const absl::Time killed = absl::Now();
        client.KillSoon();
        const std::string drained = server.Read();
        const double took_ms = MsSince(killed);
        REQUIRE(drained.find("drained=") == 0);
        const ServerPeer::State after = server.state();
        CHECK(after.links + after.calls + after.leases == 0);
        return took_ms;
      });
      CHECK(best_ms <= kDeathMs * kSlowdown);
    }
  }
}

}  // namespace
}  // namespace verbena::system_test
