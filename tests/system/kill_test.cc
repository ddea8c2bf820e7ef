// kill -9 of clients at bad moments, as the server and its other clients see it.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/time_bounds.h"
#include "tests/transports.h"

namespace verbena::system_test {
namespace {

using test_bounds::BestMs;
using test_bounds::kDeathMs;

// Longer than the loads below go on before the kill; an emulated device READs slowly.
const uint64_t kTensorBytes = (kSlowdown > 1 ? 16 : 256) << 20;

// A server with another client that keeps calling.
struct Scene {
  ServerPeer server;
  ClientPeer bystander;
  std::mt19937 random{20261129};
  ServerPeer::State before;

  explicit Scene(const std::string& transport) : bystander(server.address(), transport) {
    const std::string ready = bystander.Ask("ready");
    INFO(ready);
    REQUIRE(Fields(ready)["code"] == "OK");
  }
  // After what grows once (pools, kept objects) has grown.
  void Begin() {
    REQUIRE(Within(absl::Seconds(5), [&] {
      before = server.state();
      return before.links == 1 && before.calls + before.leases + before.fetches == 0;
    }));
    before.calls = 1;  // the bystander's
    bystander.Ask("start echo 1");
  }
  // Until everything of it is back, in milliseconds from the kill.
  double KillAfter(ClientPeer& victim, int ms_max) {
    absl::SleepFor(absl::Microseconds(random() % (ms_max * 1000)));
    const absl::Time killed = absl::Now();
    victim.KillSoon();
    std::string difference;
    const bool back = server.Returns(before, absl::Seconds(5), difference);
    const double took_ms = absl::ToDoubleMilliseconds(absl::Now() - killed);
    INFO(difference);
    REQUIRE(back);
    victim.Kill();
    return took_ms;
  }
  void ExpectUnnoticed() {
    const std::string tally = bystander.Ask("stop");
    INFO(tally);
    CHECK(Fields(tally)["bad"] == "0");
    CHECK(Fields(tally)["good"] != "0");
  }
};

// Asserts that the load was under way each time, that everything of it comes back,
// and that the bystander noticed nothing.
// How many milliseconds that takes, of the rounds the longest.
double KillUnder(const std::string& transport, const std::string& load, int rounds, int ms_max) {
  Scene scene(transport);
  const std::string what = absl::StrCat("kill -9 of a client, ", transport, ", ", load);
  INFO(what);
  {
    // Once to the end, so that memory and descriptors that are kept for the next are there.
    ClientPeer first(scene.server.address(), transport);
    REQUIRE(first.Ask(absl::StrCat("start ", load), absl::Seconds(30)) == "started");
    absl::SleepFor(absl::Milliseconds(ms_max + 1000));
    const std::string tally = first.Ask("stop", absl::Seconds(30));
    INFO(tally);
    REQUIRE(Fields(tally)["bad"] == "0");
    REQUIRE(Fields(tally)["good"] != "0");
  }
  scene.Begin();
  double longest_ms = 0;
  for (int i = 0; i < rounds; ++i) {
    const double took_ms = BestMs(what.c_str(), kDeathMs, [&] {
      ClientPeer victim(scene.server.address(), transport);
      REQUIRE(Fields(victim.Ask("ready"))["code"] == "OK");
      REQUIRE(victim.Ask(absl::StrCat("start ", load), absl::Seconds(30)) == "started");
      REQUIRE(Within(absl::Seconds(20), [&] {
        const ServerPeer::State now = scene.server.state();
        if (load.find("echo") != std::string::npos) return now.calls > scene.before.calls;
        return now.fetches > 0 || now.leases > 0;
      }));
      return scene.KillAfter(victim, ms_max);
    });
    longest_ms = std::max(longest_ms, took_ms);
  }
  scene.ExpectUnnoticed();
  return longest_ms;
}

TEST_CASE("kill -9 of a client under unary calls", "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const double took_ms = KillUnder(transport, "echo 64", 5, 50);
    CHECK(took_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of a client whose tensor is being READ", "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const double took_ms = KillUnder(transport, absl::StrCat("take 2 ", kTensorBytes), 3, 100);
    CHECK(took_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of a client that READs a tensor", "[system][kill]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const double took_ms = KillUnder(transport, absl::StrCat("give 1 ", kTensorBytes), 3, 100);
    CHECK(took_ms <= kDeathMs * kSlowdown);
  }
}

TEST_CASE("kill -9 of clients in the middle of handshakes", "[system][kill]") {
  std::vector<std::string> transports = TestTransports();
  transports.push_back("any");
  for (const std::string& transport : transports) {
    Scene scene(transport);
    {
      ClientPeer first(scene.server.address(), transport);
      REQUIRE(first.Ask("start connect 4") == "started");
      absl::SleepFor(absl::Milliseconds(300));
      const std::string tally = first.Ask("stop");
      INFO(tally);
      REQUIRE(Fields(tally)["bad"] == "0");
      REQUIRE(Fields(tally)["good"] != "0");
    }
    scene.Begin();
    // Stages that stand still: handshake_kill_test.cc. Here they are as short as they are.
    const std::string what = absl::StrCat("kill -9 of a client that connects, ", transport);
    for (int i = 0; i < 20; ++i) {
      const double took_ms = BestMs(what.c_str(), kDeathMs, [&] {
        ClientPeer victim(scene.server.address(), transport);
        REQUIRE(victim.Ask("start connect 4") == "started");
        REQUIRE(Within(absl::Seconds(20), [&] {
          const ServerPeer::State now = scene.server.state();
          return now.links + now.descriptors > scene.before.links + scene.before.descriptors + 4;
        }));
        return scene.KillAfter(victim, 20);
      });
      CHECK(took_ms <= kDeathMs * kSlowdown);
    }
    scene.ExpectUnnoticed();
  }
}

}  // namespace
}  // namespace verbena::system_test
