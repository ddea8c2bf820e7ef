// fork() in processes that use the library.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

#include "absl/strings/numbers.h"
#include "peer.verbena.h"
#include "tests/catch.h"
#include "tests/system/process.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena::system_test {
namespace {

bool Refused(const absl::Status& status) {
  return absl::IsFailedPrecondition(status) &&
         status.message().find("fork") != absl::string_view::npos;
}

// What a forked child sees of the library: 0, or the number of the check that failed.
int InChild(const std::shared_ptr<Channel>& channel, Call<test::HoldReply>& held) {
  test::Peer::Stub stub(channel);
  if (!Refused(stub.Echo({}).Get().status())) return 1;
  if (!Refused(channel->WaitUntilReady(absl::Seconds(1)))) return 2;
  if (channel->status().why.find("fork") == std::string::npos) return 3;
  if (!Refused(held.Get().status())) return 4;
  test::Peer::Stub fresh(Channel::Create(channel->target()));
  if (!Refused(fresh.Echo({}).Get().status())) return 5;
  test::Peer::Service service;
  const auto server = Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(service));
  if (!Refused(server.status())) return 6;
  return 0;
}

TEST_CASE("a forked child gets clear errors; its parent's links live on", "[system][fork]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    const auto channel = server.ChannelOver(transport);
    test::Peer::Stub stub(channel);
    REQUIRE(stub.Echo({}).Get().ok());
    Call<test::HoldReply> held = stub.Hold({});
    const pid_t child = fork();
    if (child == 0) {
      alarm(20);
      _exit(InChild(channel, held));
    }
    int status = -1;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0);
    // Expect: nothing happened to the parent, nor to what the child dropped.
    REQUIRE(stub.Echo({}).Get().ok());
    CHECK(server.state().links == 1);
    CHECK_FALSE(held.done());
  }
}

// Ends what a peer forked.
struct Orphan {
  pid_t pid = 0;
  explicit Orphan(const std::string& answer) { REQUIRE(absl::SimpleAtoi(answer, &pid)); }
  ~Orphan() { kill(pid, SIGKILL); }
  bool lives() const { return kill(pid, 0) == 0; }
};

TEST_CASE("a client's death is seen at once although a forked child of it lives",
          "[system][fork]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    ServerPeer server;
    ClientPeer client(server.address(), transport);
    REQUIRE(Fields(client.Ask("ready"))["code"] == "OK");
    REQUIRE(Fields(client.Ask("take 1048576 1"))["good"] == "1");  // a bulk lane too
    REQUIRE(server.state().links == 1);
    const Orphan orphan(client.Ask("fork"));
    const absl::Time killed = absl::Now();
    client.Kill();
    REQUIRE(Within(absl::Seconds(5), [&] { return server.state().links == 0; }));
    const absl::Duration took = absl::Now() - killed;
    printf("kill -9 of a client with a living child, %s: seen after %.1f ms\n", transport.c_str(),
           absl::ToDoubleMilliseconds(took));
    CHECK(took < absl::Milliseconds(500) * kSlowdown);
    CHECK(orphan.lives());
  }
}

TEST_CASE(
    "a server's death is seen at once although a forked child of it lives, and its address "
    "is free",
    "[system][fork]") {
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    auto server = std::make_unique<ServerPeer>();
    const std::string address = server->address();
    test::Peer::Stub stub(
        Channel::Create(address, ChannelOptions().set_require_transport(transport)));
    Call<test::HoldReply> held = stub.Hold({});
    REQUIRE(Within(absl::Seconds(5), [&] { return server->state().calls == 1; }));
    const Orphan orphan(server->Ask("fork"));
    const absl::Time killed = absl::Now();
    server->Kill();
    CHECK(absl::IsUnavailable(held.Get().status()));
    CHECK(absl::Now() - killed < absl::Milliseconds(500) * kSlowdown);
    CHECK(orphan.lives());
    ServerPeer successor(address);
    CHECK(successor.address() == address);
  }
}

}  // namespace
}  // namespace verbena::system_test
