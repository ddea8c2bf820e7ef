// kill -9 of either side in the middle of a handshake: the side that dies stands still at a stage
// of it, so that it is certainly under way.
#include <memory>
#include <string>
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

constexpr size_t kVictims = 4;

double MsSince(absl::Time then) { return absl::ToDoubleMilliseconds(absl::Now() - then); }

TEST_CASE("kill -9 of a client in each stage of its handshake leaves nothing, at once",
          "[system][kill]") {
  // Longer than all victims take to get there: their end is to be seen, not their deadline.
  ServerPeer server("127.0.0.1:0", {"handshake_ms", std::to_string(10'000 * kSlowdown)});
  for (const std::string& transport : TestTransports()) {
    for (const std::string stage : {"connected", "greeted", "beside", "opened"}) {
      if (transport != "shm" && stage == "beside") continue;
      const std::string what =
          absl::StrCat("kill -9 of a client whose handshake is ", stage, ", ", transport);
      INFO(what);
      {
        // What is kept for the next is there.
        ClientPeer first(server.address(), transport);
        REQUIRE(Fields(first.Ask("ready"))["code"] == "OK");
      }
      ServerPeer::State before;
      REQUIRE(Within(absl::Seconds(5), [&] {
        before = server.state();
        return before.links == 0 && server.connections() == 0;
      }));
      const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
        std::vector<std::unique_ptr<Peer>> victims;
        for (size_t i = 0; i < kVictims; ++i) {
          victims.push_back(std::make_unique<Peer>(
              std::vector<std::string>{"half_client", stage, server.address(), transport}));
        }
        for (const auto& victim : victims) REQUIRE(victim->Read() == "there");
        // The server has them.
        REQUIRE(Within(absl::Seconds(4), [&] { return server.connections() == kVictims; }));
        const absl::Time killed = absl::Now();
        for (const auto& victim : victims) victim->KillSoon();
        std::string difference;
        const bool back = server.Returns(before, absl::Seconds(10), difference);
        INFO(difference);
        REQUIRE(back);
        REQUIRE(Within(absl::Seconds(10), [&] { return server.connections() == 0; }));
        return MsSince(killed);
      });
      CHECK(best_ms <= kDeathMs * kSlowdown);
    }
  }
}

TEST_CASE("kill -9 of a server in each stage of a handshake ends the calls that wait for it",
          "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    for (const std::string stage : {"connected", "greeted", "opened"}) {
      const std::string what =
          absl::StrCat("kill -9 of a server whose handshake is ", stage, ", ", transport);
      INFO(what);
      const double best_ms = BestMs(what.c_str(), kDeathMs, [&] {
        Peer server({"half_server", stage, transport});
        const auto channel =
            Channel::Create(server.Read(), ChannelOptions().set_require_transport(transport));
        test::Peer::Stub stub(channel);
        auto call = stub.Echo({});
        auto second = stub.Echo({});
        REQUIRE(server.Read() == "there");
        REQUIRE(channel->status().state == ChannelStatus::State::kConnecting);
        REQUIRE_FALSE(call.done());
        const absl::Time killed = absl::Now();
        server.KillSoon();
        const absl::Status status = call.Get().status();
        const double took_ms = MsSince(killed);
        INFO(status);
        CHECK(absl::IsUnavailable(status));
        CHECK(absl::IsUnavailable(second.Get().status()));
        return took_ms;
      });
      CHECK(best_ms <= kDeathMs * kSlowdown);
    }
  }
}

}  // namespace
}  // namespace verbena::system_test
