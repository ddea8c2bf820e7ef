// Servers that go and come back under traffic; peers that cannot share memory.
#include <cstdio>
#include <cstdlib>

#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"

namespace verbena::system_test {
namespace {

TEST_CASE("drain and restart under traffic: each call ends with a status, clients reconnect",
          "[system][restart]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    auto server = std::make_unique<ServerPeer>();
    const std::string address = server->address();
    ClientPeer hasty(address, transport), patient(address, transport);
    for (ClientPeer* client : {&hasty, &patient}) {
      REQUIRE(Fields(client->Ask("ready"))["code"] == "OK");
    }
    hasty.Ask("start echo 8");
    patient.Ask("start patient 8");
    absl::SleepFor(absl::Milliseconds(50));
    const auto drained = Fields(server->Ask("drain 2000"));
    REQUIRE(drained.count("drained") == 1);
    CHECK(std::stoi(drained.at("drained")) < 2000 + 500 * kSlowdown);
    absl::SleepFor(absl::Milliseconds(50));
    server = std::make_unique<ServerPeer>(address);
    REQUIRE(Within(absl::Seconds(5), [&] { return server->state().links == 2; }));
    absl::SleepFor(absl::Milliseconds(50));
    const std::string hasty_tally = hasty.Ask("stop"), patient_tally = patient.Ask("stop");
    printf("drain and restart, %s: hasty %s; patient %s\n", transport.c_str(), hasty_tally.c_str(),
           patient_tally.c_str());
    CHECK(Fields(hasty_tally)["untyped"] == "0");
    CHECK(Fields(hasty_tally)["first"] == "UNAVAILABLE");
    // Who waits for readiness sees nothing of it: a draining server finishes what it began.
    CHECK(Fields(patient_tally)["bad"] == "0");
    CHECK(Fields(hasty.Ask("echo 100"))["bad"] == "0");
  }
}

TEST_CASE("kill and restart under traffic: calls end with UNAVAILABLE, clients reconnect",
          "[system][restart]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    auto server = std::make_unique<ServerPeer>();
    const std::string address = server->address();
    ClientPeer client(address, transport);
    client.Ask("start echo 8");
    for (int i = 0; i < 5; ++i) {
      REQUIRE(Within(absl::Seconds(5), [&] { return server->state().links == 1; }));
      absl::SleepFor(absl::Milliseconds(20));
      server->Kill();
      server = std::make_unique<ServerPeer>(address);
    }
    REQUIRE(Within(absl::Seconds(5), [&] { return server->state().links == 1; }));
    const std::string tally = client.Ask("stop");
    INFO(tally);
    CHECK(Fields(tally)["untyped"] == "0");
    CHECK(Fields(tally)["first"] == "UNAVAILABLE");
    CHECK(Fields(client.Ask("echo 100"))["bad"] == "0");
  }
}

bool Runs(const char* command) { return std::system(command) == 0; }

// What comes after shm: verbs, for who may use a device, then tcp.
void ExpectNextBeside(std::vector<std::string> prefix, const std::string& probe) {
  const std::string see = probe + " test -x " + VERBENA_SYSTEM_PEER + " > /dev/null 2> /dev/null";
  if (!Runs(see.c_str())) {
    WARN("skipped: \"" << probe << "\" does not work here, or cannot reach the test's files");
    return;
  }
  ServerPeer server;
  ClientPeer over_verbs(server.address(), "verbs", prefix);
  const bool has_verbs = Fields(over_verbs.Ask("ready"))["code"] == "OK";
  ClientPeer client(server.address(), "any", prefix);
  const std::string ready = client.Ask("ready");
  printf("client by %s: %s\n", probe.c_str(), ready.c_str());
  CHECK(Fields(ready)["transport"] == (has_verbs ? "verbs" : "tcp"));
  // Expect: the status says why it is not shared memory.
  CHECK(ready.find("shm") != std::string::npos);
  CHECK(Fields(client.Ask("take 1048576 4"))["good"] == "4");
  // Who requires shared memory is told, instead of getting less.
  ClientPeer strict(server.address(), "shm", std::move(prefix));
  const std::string refused = strict.Ask("ready");
  INFO(refused);
  CHECK(Fields(refused)["code"] == "FAILED_PRECONDITION");
}

TEST_CASE("a client of another user gets the next transport and is told why", "[system][users]") {
  ExpectNextBeside({"setpriv", "--reuid=65534", "--clear-groups"},
                   "setpriv --reuid=65534 --clear-groups");
}

TEST_CASE("a client in another user namespace gets the next transport and is told why",
          "[system][users]") {
  ExpectNextBeside({"unshare", "--user"}, "unshare --user");
}

}  // namespace
}  // namespace verbena::system_test
