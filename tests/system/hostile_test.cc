// What strangers do to a server's sockets; a client that keeps calling notices nothing.
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <random>

#include "rpc/base/unique_fd.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/system/rogue.h"
#include "tests/transports.h"

namespace verbena::system_test {
namespace {

// Reads until the other end has closed.
bool ClosedWithin(const UniqueFd& fd, absl::Duration timeout) {
  const absl::Time until = absl::Now() + timeout * kSlowdown;
  for (;;) {
    const int64_t left = absl::ToInt64Milliseconds(until - absl::Now());
    pollfd ready{fd.get(), POLLIN, 0};
    if (left < 0 || poll(&ready, 1, static_cast<int>(left) + 1) <= 0) return false;
    char bytes[4096];
    if (recv(fd.get(), bytes, sizeof bytes, MSG_DONTWAIT) <= 0) return true;
  }
}

// A server, and a client that calls it all the time and must not notice anything.
struct Watched {
  ServerPeer server{"127.0.0.1:0", {"handshake_ms", std::to_string(300 * kSlowdown)}};
  ClientPeer bystander{server.address(), "any"};
  ServerPeer::State before;
  Watched() {
    REQUIRE(Fields(bystander.Ask("ready"))["code"] == "OK");
    REQUIRE(Within(absl::Seconds(5), [&] {
      before = server.state();
      return before.links == 1 && before.leases == 0;
    }));
    before.calls = 1;  // the bystander's
    bystander.Ask("start echo 1");
  }
  void ExpectNothingLeft() {
    server.ExpectReturn(before, absl::Seconds(3));
    const std::string tally = bystander.Ask("stop");
    INFO(tally);
    REQUIRE(Fields(tally)["bad"] == "0");
    REQUIRE(Fields(tally)["good"] != "0");
  }
};

TEST_CASE("peers that connect and say nothing are dropped at the handshake's deadline",
          "[system][hostile][socket]") {
  Watched watched;
  std::vector<UniqueFd> silent;
  for (int i = 0; i < 50; ++i) silent.push_back(ConnectTo(watched.server.address()));
  const absl::Time began = absl::Now();
  for (const UniqueFd& fd : silent) REQUIRE(ClosedWithin(fd, absl::Seconds(5)));
  CHECK(absl::Now() - began >= absl::Milliseconds(250) * kSlowdown);
  watched.ExpectNothingLeft();
}

TEST_CASE("garbage ends the connection that brings it", "[system][hostile][socket]") {
  Watched watched;
  std::mt19937 random(20260801);
  std::vector<UniqueFd> open;
  for (int i = 0; i < 100; ++i) {
    std::string bytes(random() % 5000 + 1, '\0');
    for (char& byte : bytes) byte = static_cast<char>(random());
    // Every other one begins as a message does: a type, and a body that is garbage.
    if (i % 2 == 0) {
      const uint32_t body = random() % 4 == 0 ? 0xffffffff : static_cast<uint32_t>(bytes.size());
      std::string header = "VRBN";
      header += static_cast<char>(1 + random() % 5);
      header += std::string(3, '\0');
      header.append(reinterpret_cast<const char*>(&body), 4);
      bytes = header + bytes;
    }
    open.push_back(ConnectTo(watched.server.address()));
    (void)send(open.back().get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
  }
  for (const UniqueFd& fd : open) REQUIRE(ClosedWithin(fd, absl::Seconds(5)));
  watched.ExpectNothingLeft();
}

TEST_CASE("a stranger who floods instead of a handshake ends only its own connection",
          "[system][hostile][socket]") {
  Watched watched;
  const UniqueFd fd = ConnectTo(watched.server.address());
  const std::string flood(1 << 20, 'V');
  const absl::Time until = absl::Now() + absl::Seconds(5);
  bool ended = false;
  while (!ended && absl::Now() < until) {
    const ssize_t sent = send(fd.get(), flood.data(), flood.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ended = sent < 0 && errno != EAGAIN;
  }
  REQUIRE(ended);
  watched.ExpectNothingLeft();
}

int Logged(ServerPeer& server, const std::string& words) {
  return std::stoi(server.Ask("log " + words));
}

TEST_CASE("a peer that floods a link beyond its credits loses that link, for a reason that is said",
          "[system][hostile]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Watched watched;
    for (int i = 0; i < 3; ++i) {
      Flooder flooder(watched.server.address(), transport);
      CHECK(flooder.Flood(kSlowdown * absl::Seconds(10)));
    }
    // On shm the flood overwrites the sender's own ring before it is read: nothing comes that
    // proves the link.
    const std::string why =
        transport == "shm" ? "shm was not proved" : "closed: the peer sent more than its credits";
    CHECK(Within(absl::Seconds(2), [&] { return Logged(watched.server, why) >= 1; }));
    watched.ExpectNothingLeft();
  }
}

TEST_CASE("a peer that sends random records on a proved link loses that link, and nobody else does",
          "[system][hostile]") {
  constexpr int kLinks = 20;
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Watched watched;
    int closed = 0;
    for (uint32_t seed = 1; seed <= kLinks; ++seed) {
      closed += SendRandomRecords(watched.server.address(), transport, seed);
    }
    CHECK(closed == kLinks);
    CHECK(Logged(watched.server, "closed:") >= kLinks);
    watched.ExpectNothingLeft();
  }
}

TEST_CASE("a peer that floods the ring of a proved link loses that link, and nobody else does",
          "[system][hostile][shm]") {
  constexpr int kLinks = 5;
  constexpr int kLinksMax = 100;
  Watched watched;
  int closed = 0;
  // The other end closes it for its credits, or for what is left of frames in a ring that was run
  // over. Where nothing is left there that could be read, it has no reason to: then one more link.
  for (int i = 0; i < kLinksMax; ++i) {
    closed += FloodProved(watched.server.address());
    if (i >= kLinks - 1 && Logged(watched.server, " closed: ") >= 1) break;
  }
  CHECK(closed >= 1);
  CHECK(Within(absl::Seconds(2), [&] { return Logged(watched.server, " closed: ") >= 1; }));
  watched.ExpectNothingLeft();
}

TEST_CASE("two thousand connections that come and go leave nothing", "[system][hostile][socket]") {
  Watched watched;
  for (int i = 0; i < 2000; ++i) {
    const UniqueFd fd = ConnectTo(watched.server.address());
    if (i % 3 == 0) (void)send(fd.get(), "VRBN", 4, MSG_NOSIGNAL);
  }
  watched.ExpectNothingLeft();
}

TEST_CASE("a client that stops reading large replies costs a bounded amount of memory",
          "[system][hostile]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Watched watched;
    ClientPeer stuck(watched.server.address(), transport);
    REQUIRE(Fields(stuck.Ask("ready"))["code"] == "OK");
    // A thousand replies of 60 KB at a time: in frames on tcp, by READ on shm.
    stuck.Ask("start echo 1000 60000");
    absl::SleepFor(absl::Milliseconds(100));
    stuck.Stop();
    absl::SleepFor(absl::Milliseconds(300));
    const double bytes = watched.server.memory().resident;
    printf("server with a client that stopped reading 1,000 replies of 60 KB, %s: %.0f MiB\n",
           transport.c_str(), bytes / (1 << 20));
    // What a sanitizer keeps about memory counts too.
    CHECK(bytes < 400e6 * (kSlowdown > 1 ? 4 : 1));
    // Expect: it goes on where it stopped.
    stuck.Continue();
    const auto tally = Fields(stuck.Ask("stop"));
    CHECK(tally.at("bad") == "0");
    stuck.Kill();
    watched.before.used_bytes +=
        1 << 20;  // reply objects and slabs of messages are kept for the next
    watched.ExpectNothingLeft();
  }
}

}  // namespace
}  // namespace verbena::system_test
