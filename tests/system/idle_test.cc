// What processes cost that have nothing to do.
#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"

namespace verbena::system_test {
namespace {

double CpuShare(const Peer& peer, absl::Duration time) {
  const double before = peer.cpu_seconds();
  absl::SleepFor(time);
  return (peer.cpu_seconds() - before) / absl::ToDoubleSeconds(time);
}

TEST_CASE("a server and a client that were busy and are idle use no processor", "[system][idle]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    ClientPeer client(server.address(), transport);
    client.Ask("start echo 16");
    absl::SleepFor(absl::Milliseconds(200));
    REQUIRE(Fields(client.Ask("stop"))["bad"] == "0");
    REQUIRE(Fields(client.Ask("take 33554432 4"))["bad"] == "0");
    absl::SleepFor(absl::Milliseconds(100) * kSlowdown);
    // The less of two: a deadline of the handshake's, long over, may still be looked at once.
    double server_share = 1, client_share = 1;
    for (int i = 0; i < 2; ++i) {
      const double server_before = server.cpu_seconds();
      client_share = std::min(client_share, CpuShare(client, absl::Seconds(2)));
      server_share = std::min(server_share, (server.cpu_seconds() - server_before) / 2);
    }
    printf("idle for 2 s after traffic, %s: server %.3f %%, client %.3f %% of a processor\n",
           transport.c_str(), server_share * 100, client_share * 100);
    CHECK(server_share < 0.01);
    CHECK(client_share < 0.01);
    CHECK(Fields(client.Ask("echo 10"))["bad"] == "0");
  }
}

TEST_CASE("many idle connections cost a server little", "[system][idle]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    // A thousand; soft-RoCE carries a quarter of that. Over verbs each has its receives in memory,
    // and the send queues of three queue pairs, of at most 1 KiB for each work request.
    const bool verbs = transport == "verbs";
    const size_t count = verbs ? 200 : 1000;
    constexpr double kReceivesKib = 8.0 * (limits::kVerbsWindowFrames + 1);
    constexpr double kQueuesKib = limits::kVerbsControlWorkMax + 2 * limits::kVerbsBulkWorkMax;
    const double kib_max = 64 + (verbs ? kReceivesKib + kQueuesKib : 0);
    ServerPeer server("127.0.0.1:0", {"handshake_ms", absl::StrCat(2000 * kSlowdown)});
    ClientPeer client(server.address(), transport), caller(server.address(), transport);
    REQUIRE(Fields(client.Ask("connect 10"))["good"] == "10");
    REQUIRE(Fields(caller.Ask("echo 100"))["bad"] == "0");
    const Peer::Memory before = server.memory();
    const size_t descriptors = server.descriptors();
    const std::string connected =
        client.Ask(absl::StrCat("connect ", count), absl::Seconds(100) * (verbs ? kSlowdown : 1));
    INFO(connected);
    REQUIRE(Fields(connected)["good"] == absl::StrCat(count));
    // A client's end may be up a little before the server's.
    REQUIRE(Within(absl::Seconds(5), [&] { return server.state().links == 10 + 1 + count; }));
    absl::SleepFor(absl::Milliseconds(2500) *
                   kSlowdown);  // the deadlines of the handshakes are over
    const Peer::Memory now = server.memory();
    const auto each = static_cast<double>(count);
    const double resident = (now.resident - before.resident) / each / 1024;
    const double proportional = (now.proportional - before.proportional) / each / 1024;
    const double share = CpuShare(server, absl::Seconds(1));
    const double tables = (now.page_tables - before.page_tables) / each / 1024;
    printf(
        "%zu idle connections, %s, each: %.1f KiB, %.1f KiB of page tables; mapped with the "
        "peer's %.0f KiB, %.1f descriptors; server %.3f %% of a processor\n",
        count, transport.c_str(), proportional, tables, resident,
        static_cast<double>(server.descriptors() - descriptors) / each, share * 100);
    // The slabs of the client's that the server has mapped are the client's memory.
    CHECK(proportional + tables <= kib_max);
    CHECK(share < 0.01);
    CHECK(Fields(caller.Ask("echo 1000"))["bad"] == "0");
  }
}

}  // namespace
}  // namespace verbena::system_test
