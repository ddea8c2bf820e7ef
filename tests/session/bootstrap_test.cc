// Links between two processes' worth of engines: what is agreed, what is tried next, what is
// refused.
#include "rpc/session/bootstrap.h"

#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/session/address.h"
#include "rpc/session/random.h"
#include "tests/catch.h"
#include "tests/session/bootstrap_fakes.h"

namespace verbena::session {
namespace {

using absl::StatusCode;

const FakeFabricOptions kFast{.name = "fast", .passes_descriptors = true};
const FakeFabricOptions kSlow{.name = "slow", .takes_stream = true, .segment_bytes = 65536};

// A server and a client engine with the same transports, and a listener on a free port.
struct Pair {
  explicit Pair(ListenOptions options = {}, std::vector<FakeFabricOptions> fabrics = {kFast, kSlow})
      : server(fabrics), client(fabrics) {
    if (options.address.empty()) options.address = "127.0.0.1:0";
    listener = Listener::Listen(options, {&server}, sink).value();
  }
  ~Pair() {
    listener.reset();
    client.CloseLinks();
    server.CloseLinks();
  }
  absl::StatusOr<Link*> Connect(ConnectOptions options = {}) {
    if (options.address.empty()) options.address = listener->address();
    return ConnectNow(client, options, owner);
  }
  FakeSink sink;
  FakeOwner owner;
  FakeEngine server, client;
  std::unique_ptr<Listener> listener;
};

FakeLink& Of(const absl::StatusOr<Link*>& link) { return static_cast<FakeLink&>(**link); }

bool Says(const absl::Status& status, absl::string_view text) {
  return status.message().find(text) != absl::string_view::npos;
}

// Nothing of failed attempts is left at either end.
void CheckNothingLeft(Pair& pair, size_t links) {
  CHECK(Eventually(
      [&] { return pair.server.reserved() == links && pair.client.reserved() == links; }));
  size_t server = 0, client = 0;
  CHECK(Eventually([&] {
    server = pair.server.Fake("fast")->links() + pair.server.Fake("slow")->links();
    client = pair.client.Fake("fast")->links() + pair.client.Fake("slow")->links();
    return server == links && client == links;
  }));
}

}  // namespace

TEST_CASE("both ends of a link know the same of it", "[bootstrap]") {
  Pair pair;
  const auto link = pair.Connect();
  REQUIRE(link.ok());
  REQUIRE(pair.server.AwaitLinks(1));
  const LinkSetup& client = Of(link).setup;
  const LinkSetup& server = pair.server.links()[0]->setup;
  CHECK(client.info.transport == "fast");
  CHECK(server.info.transport == "fast");
  CHECK(client.side == fabric::Side::kClient);
  CHECK(server.side == fabric::Side::kServer);
  CHECK(client.info.peer == pair.listener->address());
  CHECK_FALSE(client.info.why.empty());
  CHECK(client.info.read_ways == "by hand");
  CHECK(client.peer_segment_bytes == 8192);
  CHECK(client.open_calls_max > 0);
  uint64_t incarnation = 0;
  memcpy(&incarnation, ProcessIncarnation().data(), sizeof(incarnation));
  CHECK(client.peer_incarnation == incarnation);
  CHECK(server.peer_incarnation == incarnation);
  // The stream stays open between them, and is at a message's boundary.
  char byte = 'x';
  REQUIRE(send(client.stream_fd, &byte, 1, 0) == 1);
  byte = 0;
  CHECK(recv(server.stream_fd, &byte, 1, 0) == 1);
  CHECK(byte == 'x');
  // Each one's descriptor is the other's: three different files would be wrong, so would none.
  CHECK(client.peer_pidfd >= 0);
  CHECK(server.peer_pidfd >= 0);
  const uint64_t at_client = pair.client.Fake("fast")->descriptor_of(client.id);
  const uint64_t at_server = pair.server.Fake("fast")->descriptor_of(server.id);
  CHECK(at_client != 0);
  CHECK(at_server != 0);
  CHECK(at_client != at_server);
  CHECK(Eventually([&] { return pair.sink.up == 1 && pair.owner.up == 1; }));
  CHECK_FALSE(pair.client.Fake("fast")->prepared_on_wrong_thread);
  CHECK_FALSE(pair.server.Fake("fast")->prepared_on_wrong_thread);
  CHECK_FALSE(pair.client.adopted_outside_seat);
  CHECK_FALSE(pair.server.adopted_outside_seat);
}

TEST_CASE("a transport that takes the stream gets it", "[bootstrap]") {
  Pair pair;
  ConnectOptions options;
  options.transports = {"slow"};
  const auto link = pair.Connect(options);
  REQUIRE(link.ok());
  REQUIRE(pair.server.AwaitLinks(1));
  CHECK(Of(link).setup.stream_fd == -1);
  CHECK(pair.server.links()[0]->setup.stream_fd == -1);
}

TEST_CASE("a client's order of transports is kept", "[bootstrap]") {
  Pair pair;
  ConnectOptions options;
  options.transports = {"unheard", "slow", "fast"};
  const auto link = pair.Connect(options);
  REQUIRE(link.ok());
  CHECK(Of(link).setup.info.transport == "slow");
  CHECK(Of(link).setup.info.why == "unheard: this process does not have it");
  options.transports = {"unheard"};
  const std::string refused(pair.Connect(options).status().message());
  CHECK(refused.find("this process has fast, slow, and not what was asked for: unheard: this "
                     "process does not have it") != std::string::npos);
  options.transports = {"slow"};
  CHECK(Of(pair.Connect(options)).setup.info.why == "the only one that was asked for");
}

TEST_CASE("what fails is followed by the next transport, with the reason", "[bootstrap]") {
  Pair pair;
  const absl::Status fault = absl::InternalError("told to fail");
  FakeFabric& client = *pair.client.Fake("fast");
  FakeFabric& server = *pair.server.Fake("fast");
  SECTION("the client cannot prepare it") { client.faults.prepare_client = fault; }
  SECTION("the server cannot prepare it") { server.faults.prepare_server = fault; }
  SECTION("the server cannot complete it") { server.faults.complete_server = fault; }
  SECTION("the client cannot complete it") {
    client.faults.complete_client = fault;
    pair.server.not_proved["fast"] = fault;  // as the client never comes
  }
  SECTION("it is not proved") {
    pair.client.not_proved["fast"] = fault;
    pair.server.not_proved["fast"] = fault;
  }
  const auto link = pair.Connect();
  REQUIRE(link.ok());
  CHECK(Of(link).setup.info.transport == "slow");
  CHECK(Of(link).setup.info.why.find("fast: ") == 0);
  CHECK(Of(link).setup.info.why.find("told to fail") != std::string::npos);
  REQUIRE(Eventually([&] { return pair.sink.up == 1; }));
  CheckNothingLeft(pair, 1);
}

TEST_CASE("a server may offer less; the client says what it misses", "[bootstrap]") {
  ListenOptions options;
  options.transports = {"slow"};
  Pair pair(options);
  SECTION("another transport is there") {
    const auto link = pair.Connect();
    REQUIRE(link.ok());
    CHECK(Of(link).setup.info.transport == "slow");
    CHECK(Of(link).setup.info.why.find("not to offer it") != std::string::npos);
  }
  SECTION("none is there") {
    ConnectOptions fast_only;
    fast_only.transports = {"fast"};
    const auto link = pair.Connect(fast_only);
    CHECK(link.status().code() == StatusCode::kFailedPrecondition);
    CHECK(Says(link.status(), "fast: "));
    CHECK(Says(link.status(), "not to offer it"));
    CheckNothingLeft(pair, 0);
  }
}

TEST_CASE("when no transport works the error names each with its reason", "[bootstrap]") {
  Pair pair;
  pair.server.Fake("fast")->faults.prepare_server = absl::InternalError("no memory there");
  pair.client.not_proved["slow"] = absl::InternalError("wrong pattern");
  pair.server.not_proved["slow"] = absl::InternalError("wrong pattern");
  const auto link = pair.Connect();
  CHECK(link.status().code() == StatusCode::kFailedPrecondition);
  CHECK(Says(link.status(), "fast: the server: no memory there"));
  CHECK(Says(link.status(), "slow: wrong pattern"));
  CheckNothingLeft(pair, 0);
}

TEST_CASE("a transport that was not proved in time may work later", "[bootstrap]") {
  Pair pair;
  ConnectOptions fast_only;
  fast_only.transports = {"fast"};
  const absl::Status why = GENERATE(absl::DeadlineExceededError("not proved in time"),
                                    absl::UnavailableError("the peer is gone"));
  pair.client.not_proved["fast"] = why;
  pair.server.not_proved["fast"] = why;
  const auto link = pair.Connect(fast_only);
  CHECK(link.status().code() == StatusCode::kUnavailable);
  CHECK(Says(link.status(), std::string(why.message())));
  CheckNothingLeft(pair, 0);
}

TEST_CASE("a server's maximum of connections is a typed refusal, and ends when a link does",
          "[bootstrap]") {
  ListenOptions options;
  options.connections_max = 2;
  Pair pair(options);
  REQUIRE(pair.Connect().ok());
  REQUIRE(pair.Connect().ok());
  REQUIRE(pair.server.AwaitLinks(2));
  const auto third = pair.Connect();
  CHECK(third.status().code() == StatusCode::kResourceExhausted);
  CHECK(Says(third.status(), "2 connections"));
  pair.server.CloseLink(*pair.server.links()[0]);
  CHECK(pair.Connect().ok());
}

TEST_CASE("an engine's maximum of links is a typed refusal", "[bootstrap]") {
  Pair pair;
  pair.server.links_max = 1;
  REQUIRE(pair.Connect().ok());
  const auto second = pair.Connect();
  CHECK(second.status().code() == StatusCode::kResourceExhausted);
  CHECK(Says(second.status(), "at most 1 links"));
  // The client's own, too.
  pair.server.links_max = 10;
  pair.client.links_max = 1;
  CHECK(pair.Connect().status().code() == StatusCode::kResourceExhausted);
}

TEST_CASE("a transport's maximum of links is a typed refusal where no other works", "[bootstrap]") {
  const absl::Status full = absl::ResourceExhaustedError("fast: the limit of 7 links is reached");
  std::mutex mutex;
  std::string log;
  SetLogSink([&](LogLevel, absl::string_view line) {
    const std::lock_guard lock(mutex);
    absl::StrAppend(&log, line, "\n");
  });
  const absl::Cleanup no_sink = [] { SetLogSink({}); };
  Pair pair;
  SECTION("the server's") { pair.server.Fake("fast")->faults.prepare_server = full; }
  SECTION("the client's") { pair.client.Fake("fast")->faults.prepare_client = full; }
  ConnectOptions fast_only;
  fast_only.transports = {"fast"};
  const auto refused = pair.Connect(fast_only);
  CHECK(refused.status().code() == StatusCode::kResourceExhausted);
  CHECK(Says(refused.status(), "fast: the limit of 7 links"));
  CHECK_FALSE(Says(refused.status(), "fast: fast"));
  CheckNothingLeft(pair, 0);
  {
    const std::lock_guard lock(mutex);
    CHECK(log.find("fast: fast") == std::string::npos);
    const bool servers = pair.server.Fake("fast")->faults.prepare_server == full;
    CHECK((log.find("failed: fast: the limit of 7 links") != std::string::npos) == servers);
  }
  // Who may use another gets it, and the reason.
  const auto link = pair.Connect();
  REQUIRE(link.ok());
  CHECK(Of(link).setup.info.transport == "slow");
  CHECK(Of(link).setup.info.why.find("7 links") != std::string::npos);
}

TEST_CASE("links are spread over engines in turn", "[bootstrap]") {
  FakeSink sink;
  FakeOwner owner;
  FakeEngine a({kFast}), b({kFast}), client({kFast});
  ListenOptions options;
  options.address = "127.0.0.1:0";
  auto listener = Listener::Listen(options, {&a, &b}, sink).value();
  ConnectOptions to;
  to.address = listener->address();
  for (int i = 0; i < 4; ++i) REQUIRE(ConnectNow(client, to, owner).ok());
  CHECK(a.AwaitLinks(2));
  CHECK(b.AwaitLinks(2));
  listener.reset();
  client.CloseLinks();
  a.CloseLinks();
  b.CloseLinks();
}

TEST_CASE("addresses that people write work, or are refused by name", "[bootstrap]") {
  SECTION("IPv6 and all interfaces") {
    for (const char* address : {"[::1]:0", ":0", "localhost:0"}) {
      ListenOptions options;
      options.address = address;
      Pair pair(options);
      const std::string& bound = pair.listener->address();
      CHECK(bound.find(":0") != bound.size() - 2);
      ConnectOptions to;
      to.address = absl::StrCat(address == std::string("[::1]:0") ? "[::1]" : "localhost",
                                bound.substr(bound.rfind(':')));
      CHECK(pair.Connect(to).ok());
    }
  }
  SECTION("a unix socket, also over a stale file") {
    ListenOptions options;
    const std::string path = absl::StrCat("/tmp/verbena-test-", getpid(), "-", RandomHex(4));
    options.address = "unix:" + path;
    for (int i = 0; i < 2; ++i) {
      {
        Pair pair(options);
        CHECK(pair.listener->address() == options.address);
        CHECK(pair.Connect().ok());
        // Taken while somebody listens.
        const auto second = Listener::Listen(options, {&pair.server}, pair.sink);
        CHECK(second.status().code() == StatusCode::kAlreadyExists);
        CHECK(Says(second.status(), path));
      }
      CHECK(access(path.c_str(), F_OK) != 0);
      if (i == 0) {  // what a killed server leaves behind
        const int fd = socket(AF_UNIX, SOCK_STREAM, 0);
        const SocketAddress stale =
            ResolveNumeric(ParseAddress(options.address).value(), true).value()[0];
        REQUIRE(bind(fd, stale.get(), stale.bytes) == 0);
        close(fd);
      }
    }
  }
  SECTION("a port in use") {
    Pair pair;
    ListenOptions same;
    same.address = pair.listener->address();
    const auto second = Listener::Listen(same, {&pair.server}, pair.sink);
    CHECK(second.status().code() == StatusCode::kAlreadyExists);
    CHECK(Says(second.status(), pair.listener->address()));
  }
  SECTION("a port in use on the first of several addresses") {
    // Without a host there are two: all of IPv6, and all of IPv4, which stays free.
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    sockaddr_in6 all{};
    all.sin6_family = AF_INET6;
    socklen_t bytes = sizeof(all);
    const bool has_ipv6 =
        fd >= 0 && setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &on, sizeof(on)) == 0 &&
        bind(fd, reinterpret_cast<sockaddr*>(&all), bytes) == 0 && listen(fd, 1) == 0 &&
        getsockname(fd, reinterpret_cast<sockaddr*>(&all), &bytes) == 0;
    if (!has_ipv6) {
      WARN("skipped: no IPv6 here");
    } else {
      ListenOptions options;
      options.address = absl::StrCat(":", ntohs(all.sin6_port));
      Pair pair;
      const auto second = Listener::Listen(options, {&pair.server}, pair.sink);
      CHECK(second.status().code() == StatusCode::kAlreadyExists);
      CHECK(Says(second.status(), options.address));
    }
    if (fd >= 0) close(fd);
  }
  SECTION("no address, nobody there, no such host") {
    Pair pair;
    for (const char* text :
         {"nonsense", "host:port", "1::2:80", "[::1:80", "host:99999", "unix:"}) {
      ConnectOptions to;
      to.address = text;
      const auto link = pair.Connect(to);
      CHECK(link.status().code() == StatusCode::kInvalidArgument);
      CHECK(Says(link.status(), text));
    }
    const std::string gone = pair.listener->address();
    pair.listener.reset();
    ConnectOptions to;
    to.address = gone;
    const auto link = pair.Connect(to);
    CHECK(link.status().code() == StatusCode::kUnavailable);
    CHECK(Says(link.status(), "refused"));
    CHECK(Says(link.status(), gone));
    to.address = "no-such-host.invalid:80";
    CHECK(pair.Connect(to).status().code() == StatusCode::kUnavailable);
  }
}

TEST_CASE("attempts leave no descriptor behind", "[bootstrap]") {
  Pair warm;
  REQUIRE(warm.Connect().ok());
  const size_t before = OpenDescriptors();
  {
    Pair pair;
    pair.server.Fake("fast")->faults.complete_server = absl::InternalError("told to fail");
    pair.client.not_proved["slow"] = absl::InternalError("told to fail");
    pair.server.not_proved["slow"] = absl::InternalError("told to fail");
    for (int i = 0; i < 5; ++i) CHECK_FALSE(pair.Connect().ok());
    CheckNothingLeft(pair, 0);
  }
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
}

TEST_CASE("many clients at once all get their links", "[bootstrap]") {
  Pair pair;
  std::atomic<int> ok{0}, ended{0};
  constexpr int kClients = 300;
  ConnectOptions options;
  options.address = pair.listener->address();
  for (int i = 0; i < kClients; ++i) {
    Connect(pair.client, options, pair.owner, [&](absl::StatusOr<Link*> link) {
      if (link.ok()) ok.fetch_add(1);
      ended.fetch_add(1);
    });
  }
  CHECK(Eventually([&] { return ended.load() == kClients; }));
  CHECK(ok.load() == kClients);
  CHECK(pair.server.AwaitLinks(kClients));
}

TEST_CASE("an attempt that takes too long ends and says what it waited for", "[bootstrap]") {
  const int silent = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const SocketAddress any = ResolveNumeric(ParseAddress("127.0.0.1:0").value(), true).value()[0];
  REQUIRE(bind(silent, any.get(), any.bytes) == 0);
  REQUIRE(listen(silent, 10) == 0);
  FakeEngine client({kFast});
  FakeOwner owner;
  ConnectOptions options;
  options.address = LocalText(silent);
  options.timeout = absl::Milliseconds(50);
  const auto link = ConnectNow(client, options, owner);
  CHECK(link.status().code() == StatusCode::kUnavailable);
  CHECK(Says(link.status(), "HELLO_REPLY"));
  CHECK(Says(link.status(), options.address));
  close(silent);
}

}  // namespace verbena::session
