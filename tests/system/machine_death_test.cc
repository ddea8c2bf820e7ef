// The machine of a server's clients dies without a word. Needs a second machine, so the case is
// hidden, and run in two guests only: tests/system/machine_death.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "absl/strings/str_cat.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/system/verbs_holdings.h"

namespace verbena::system_test {
namespace {

constexpr uint16_t kServerPort = 7000, kWordsPort = 7001;
constexpr uint64_t kReads = 100, kMost = 90;

// Those of the other machine, by name.
std::map<std::string, std::unique_ptr<Peer>> Remotes(const std::string& address, size_t count) {
  const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const int yes = 1;
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in at{};
  at.sin_family = AF_INET;
  at.sin_port = htons(kWordsPort);
  REQUIRE(inet_pton(AF_INET, address.c_str(), &at.sin_addr) == 1);
  REQUIRE(bind(listener, reinterpret_cast<sockaddr*>(&at), sizeof at) == 0);
  REQUIRE(listen(listener, 8) == 0);
  std::map<std::string, std::unique_ptr<Peer>> remotes;
  while (remotes.size() < count) {
    pollfd ready{listener, POLLIN, 0};
    REQUIRE(poll(&ready, 1, 60'000) == 1);
    auto peer = std::make_unique<Peer>(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    const std::string name = peer->Read();
    REQUIRE(name != "");
    remotes[name] = std::move(peer);
  }
  close(listener);
  return remotes;
}

TEST_CASE("a machine with clients dies, and a server gets back what they held",
          "[.][system][verbs][machine]") {
  const char* const here = std::getenv("GUEST_ADDRESS");
  REQUIRE(here != nullptr);
  const std::string pull = absl::StrCat("start pull ", kReads, " ", 1 << 20);
  ServerPeer server(absl::StrCat(here, ":", kServerPort));
  auto remotes = Remotes(here, 4);
  ClientPeer bystander(server.address(), "verbs");
  REQUIRE(Fields(bystander.Ask("echo 10"))["bad"] == "0");
  const auto under_way = [&] {
    return server.state().leases >= kMost && VerbsOf(server).at("windows_used") > 0;
  };
  const uint64_t pairs_alone = VerbsOf(server).at("queue_pairs");
  {
    // What is made once is made.
    ClientPeer first(server.address(), "verbs");
    REQUIRE(first.Ask(pull) == "started");
    REQUIRE(Within(absl::Seconds(20), under_way));
    REQUIRE(Fields(first.Ask("stop"))["bad"] == "0");
  }
  REQUIRE(Within(absl::Seconds(5), [&] {
    const ServerPeer::State state = server.state();
    return state.links == 1 && state.leases == 0 &&
           VerbsOf(server).at("queue_pairs") == pairs_alone;
  }));
  const Holdings before = Holdings::Of(server);
  REQUIRE(bystander.Ask("start echo 1") == "started");

  for (const char* name : {"reads", "calls", "idle"}) {
    INFO(name);
    remotes.at(name)->Send("go");
    const std::string ready = remotes.at(name)->Ask("ready");
    INFO(ready);
    REQUIRE(Fields(ready)["code"] == "OK");
  }
  REQUIRE(remotes.at("calls")->Ask("start echo 16") == "started");
  REQUIRE(remotes.at("reads")->Ask(pull) == "started");
  REQUIRE(Within(absl::Seconds(20), under_way));
  REQUIRE(server.state().links == 4);
  const absl::Time killed = absl::Now();
  remotes.at("end")->Send("now");
  // Those that something is owed are found out by what is sent to them, the idle one by its
  // connection, after 11 s.
  std::string more;
  double last_s[2] = {};
  const bool back = Within(absl::Seconds(30), [&] {
    const Holdings now = Holdings::Of(server);
    const double s = absl::ToDoubleSeconds(absl::Now() - killed);
    if (now.state.leases > 0) last_s[0] = s;
    if (now.state.links > 1) last_s[1] = s;
    more = before.MoreIn(now);
    return more.empty();
  });
  INFO("more than before: " << more);
  REQUIRE(back);
  printf("a machine died: leases back after %.1f s, links after %.1f s, all after %.1f s\n",
         last_s[0], last_s[1], absl::ToDoubleSeconds(absl::Now() - killed));
  const std::string tally = bystander.Ask("stop");
  INFO(tally);
  CHECK(Fields(tally)["bad"] == "0");
  CHECK(Fields(tally)["good"] != "0");
  ClientPeer later(server.address(), "verbs");
  CHECK(Fields(later.Ask("take 1048576 2"))["good"] == "2");
}

}  // namespace
}  // namespace verbena::system_test
