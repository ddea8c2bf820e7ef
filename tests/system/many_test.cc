// Many clients at full rate share a server fairly.
#include <algorithm>
#include <cstdio>
#include <memory>

#include "absl/strings/numbers.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"

namespace verbena::system_test {
namespace {

TEST_CASE("eight clients at full rate get about the same", "[system][many]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    std::vector<std::unique_ptr<ClientPeer>> clients;
    for (int i = 0; i < 8; ++i) {
      clients.push_back(std::make_unique<ClientPeer>(server.address(), transport));
      const std::string ready = clients.back()->Ask("ready");
      INFO(ready);
      REQUIRE(Fields(ready)["code"] == "OK");
    }
    for (auto& client : clients) client->Send("start echo 16");
    for (auto& client : clients) client->Read();
    absl::SleepFor(absl::Seconds(4));
    for (auto& client : clients) client->Send("stop");
    uint64_t least = UINT64_MAX, most = 0;
    for (auto& client : clients) {
      const std::string tally = client->Read();
      INFO(tally);
      REQUIRE(Fields(tally)["bad"] == "0");
      uint64_t good = 0;
      REQUIRE(absl::SimpleAtoi(Fields(tally)["good"], &good));
      least = std::min(least, good);
      most = std::max(most, good);
    }
    REQUIRE(least > 0);
    const double ratio = static_cast<double>(most) / static_cast<double>(least);
    printf("8 clients for 4 s, %s: %zu to %zu calls, max / min %.2f\n", transport.c_str(),
           static_cast<size_t>(least), static_cast<size_t>(most), ratio);
    CHECK(ratio <= 4);  // 2 on a quiet machine
  }
}

}  // namespace
}  // namespace verbena::system_test
