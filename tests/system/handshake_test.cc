// kill -9 of a server while clients shake hands with it.
#include <unistd.h>

#include <memory>
#include <random>
#include <vector>

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

constexpr size_t kClients = 32;

// Channels of their own, each with a call.
struct Clients {
  Clients(const ServerPeer& server, const std::string& transport) {
    for (size_t i = 0; i < kClients; ++i) {
      channels.push_back(server.ChannelOver(transport));
      calls.push_back(test::Peer::Stub(channels.back()).Echo({}));
    }
  }
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Call<test::EchoReply>> calls;
};

TEST_CASE("kill -9 of a server that has not answered HELLO ends its clients' calls at once",
          "[system]") {
  for (const std::string& transport : TestTransports()) {
    const double best_ms = BestMs(("kill -9 in handshakes, " + transport).c_str(), kDeathMs, [&] {
      ServerPeer server;
      server.Stop();  // the kernel takes connections for it, and their HELLOs
      Clients clients(server, transport);
      REQUIRE(Within(absl::Seconds(5), [&] {
        size_t connecting = 0;
        for (const auto& channel : clients.channels)
          connecting += channel->status().state == ChannelStatus::State::kConnecting;
        return connecting == kClients;
      }));
      for (auto& call : clients.calls) REQUIRE_FALSE(call.done());
      const absl::Time killed = absl::Now();
      server.KillSoon();
      for (auto& call : clients.calls) CHECK(absl::IsUnavailable(call.Get().status()));
      return absl::ToDoubleMilliseconds(absl::Now() - killed);
    });
    CHECK(best_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of a server at any moment of handshakes leaves nothing at its clients",
          "[system]") {
  std::mt19937 random(20261130);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    size_t before = 0;
    for (int round = 0; round < 12; ++round) {
      ServerPeer server;
      {
        Clients clients(server, transport);
        absl::SleepFor(absl::Microseconds(random() % 4000));
        server.Kill();
        for (auto& call : clients.calls) {
          const absl::Status status = call.Get().status();
          INFO(status.ToString());
          CHECK((status.ok() || absl::IsUnavailable(status)));
        }
      }
      if (round == 1) before = DescriptorsOf(getpid());  // what is made once is made
    }
    CHECK(Within(absl::Seconds(5), [&] { return DescriptorsOf(getpid()) <= before; }));
  }
}

}  // namespace
}  // namespace verbena::system_test
