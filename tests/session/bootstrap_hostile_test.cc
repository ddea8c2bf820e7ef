// Peers that break the rules, on either side.
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <fstream>
#include <functional>
#include <mutex>
#include <random>
#include <thread>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/base/log.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/address.h"
#include "rpc/session/random.h"
#include "rpc/session/side_socket.h"
#include "tests/catch.h"
#include "tests/session/bootstrap_fakes.h"

namespace verbena::session {
namespace {

using absl::StatusCode;
using wire::HelloType;

struct Lines {
  Lines() {
    SetLogSink([this](LogLevel, absl::string_view line) {
      std::lock_guard lock(mutex);
      all.emplace_back(line);
    });
  }
  ~Lines() { SetLogSink({}); }
  size_t Count(absl::string_view text) {
    std::lock_guard lock(mutex);
    size_t count = 0;
    for (const std::string& line : all) count += absl::StrContains(line, text);
    return count;
  }
  std::mutex mutex;
  std::vector<std::string> all;
};

struct Server {
  explicit Server(absl::Duration timeout = absl::Seconds(5))
      : engine({{.name = "fast", .passes_descriptors = true}}) {
    ListenOptions options;
    options.address = "127.0.0.1:0";
    options.handshake_timeout = timeout;
    listener = Listener::Listen(options, {&engine}, sink).value();
  }
  ~Server() {
    listener.reset();
    engine.CloseLinks();
  }
  // An honest client still gets its link.
  bool Serves() {
    FakeEngine client({{.name = "fast", .passes_descriptors = true}});
    ConnectOptions options;
    options.address = listener->address();
    return ConnectNow(client, options, owner).ok();
  }
  Lines lines;
  FakeSink sink;
  FakeOwner owner;
  FakeEngine engine;
  std::unique_ptr<Listener> listener;
};

std::string Hello(uint16_t version = wire::kProtocolVersion,
                  uint16_t oldest = wire::kProtocolVersionOldest) {
  wire::Hello hello;
  hello.version = version;
  hello.version_oldest = oldest;
  hello.open_calls_max = 10;
  return wire::EncodeHello(HelloType::kHello, hello);
}

std::string Open(uint32_t descriptors) {
  wire::OpenMessage open;
  open.transport = "fast";
  open.segment_bytes = 8192;
  open.descriptors = descriptors;
  open.blob = "fast client";
  return wire::EncodeOpen(HelloType::kOpen, open);
}

}  // namespace

TEST_CASE("a server refuses what is no handshake with words, and goes on serving",
          "[bootstrap][hostile]") {
  Server server;
  RawClient client(server.listener->address());
  absl::Status refusal;
  StatusCode code = StatusCode::kInvalidArgument;
  std::string says;
  SECTION("an unknown version") {
    client.Send(Hello(9, 7));
    code = StatusCode::kFailedPrecondition;
    says = "7 to 9";
  }
  SECTION("OPEN before HELLO") {
    client.Send(Open(0));
    says = "OPEN came, expected HELLO";
  }
  SECTION("HELLO twice") {
    client.SayHello();
    client.Send(Hello());
    says = "HELLO came, expected OPEN";
  }
  SECTION("a server's message") {
    client.Send(wire::EncodeRefuse(absl::AbortedError("x")));
    says = "REFUSE came";
  }
  SECTION("an oversized body") {
    std::string header = Hello().substr(0, 12);
    header[11] = '\x7f';
    client.Send(header);
    says = "at most 65536";
  }
  SECTION("random bytes") {
    client.Send("GET / HTTP/1.1\r\nHost: x\r\n\r\n");
    says = "does not speak this protocol";
  }
  SECTION("a body that is no sequence of records") {
    std::string message = Hello();
    message[16] = '\xff';  // the first record's length
    client.Send(message);
    says = "bytes";
  }
  SECTION("no open calls") {
    wire::Hello hello;
    client.Send(wire::EncodeHello(HelloType::kHello, hello));
    says = "0 calls may be open";
  }
  refusal = client.AwaitRefusal();
  CHECK(refusal.code() == code);
  CHECK(refusal.message().find(says) != absl::string_view::npos);
  CHECK(client.ReceiveAll().empty());  // and closes
  CHECK(server.lines.Count("handshake with") == 1);
  CHECK(server.Serves());
}

TEST_CASE("an OPEN that the server cannot take is answered; the next may work",
          "[bootstrap][hostile]") {
  Server server;
  RawClient client(server.listener->address());
  client.SayHello();
  wire::OpenMessage open;
  SECTION("an unknown transport") { open.transport = "pigeon"; }
  SECTION("frames that hold nothing") {
    open.transport = "fast";
    open.segment_bytes = 1;
  }
  for (int i = 0; i < 2; ++i) {
    client.Send(wire::EncodeOpen(HelloType::kOpen, open));
    const auto reply = client.Receive();
    REQUIRE(reply != nullptr);
    REQUIRE(reply->type == HelloType::kOpenReply);
    CHECK_FALSE(wire::DecodeOpen(reply->body)->status.ok());
  }
}

TEST_CASE("a TLS client is told so in its own language", "[bootstrap][hostile]") {
  Server server;
  RawClient client(server.listener->address());
  client.Send(std::string("\x16\x03\x01\x02\x00\x01", 6));
  const std::string answer = client.ReceiveAll();
  REQUIRE(answer.size() == 7);
  CHECK(answer[0] == 0x15);  // an alert
  CHECK(answer[5] == 0x02);  // fatal
  CHECK(Eventually([&] { return server.lines.Count("TLS") == 1; }));
  CHECK(server.Serves());
}

TEST_CASE("silent peers are closed at the deadline; one that closes first is no event",
          "[bootstrap][hostile]") {
  Server server(absl::Milliseconds(50));
  { RawClient scanner(server.listener->address()); }
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  CHECK(server.lines.Count("") == 0);
  SECTION("nothing") {
    RawClient client(server.listener->address());
    CHECK(client.ReceiveAll().empty());
    CHECK(server.lines.Count("no HELLO came") == 1);
  }
  SECTION("half a HELLO") {
    RawClient client(server.listener->address());
    client.Send(Hello().substr(0, 20));
    CHECK(client.ReceiveAll().empty());
  }
  SECTION("no OPEN") {
    RawClient client(server.listener->address());
    client.SayHello();
    CHECK(client.ReceiveAll().empty());
    CHECK(server.lines.Count("not done after") == 1);
  }
  SECTION("descriptors that never come") {
    RawClient client(server.listener->address());
    client.SayHello();
    client.Send(Open(1));
    CHECK(client.ReceiveAll().empty());
  }
  SECTION("a side connection without a token") {
    RawClient client(server.listener->address());
    wire::Hello reply = client.SayHello();
    const int side = socket(AF_UNIX, SOCK_STREAM, 0);
    const SocketAddress to =
        ResolveNumeric(ParseAddress("unix:" + reply.side_path).value(), false).value()[0];
    REQUIRE(connect(side, to.get(), to.bytes) == 0);
    char byte;
    CHECK(recv(side, &byte, 1, 0) == 0);
    close(side);
  }
  CHECK(server.Serves());
}

TEST_CASE("a handshake that ended while it waited for the setup thread sets up nothing",
          "[bootstrap][hostile]") {
  Server server(absl::Milliseconds(50));
  std::atomic<bool> blocked{false}, release{false}, done{false};
  reactor::PostSetup([&] {
    blocked = true;
    while (!release) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  });
  REQUIRE(Eventually([&] { return blocked.load(); }));
  RawClient client(server.listener->address());
  client.SayHello();
  client.Send(Open(0));
  const bool timed_out = Eventually([&] { return server.lines.Count("not done after") == 1; });
  release = true;
  CHECK(timed_out);
  reactor::PostSetup([&] { done = true; });
  REQUIRE(Eventually([&] { return done.load(); }));
  CHECK(server.engine.Fake("fast")->prepares == 0);
  CHECK(server.Serves());
}

TEST_CASE("a client may vanish after any byte", "[bootstrap][hostile]") {
  Server server;
  REQUIRE(server.Serves());
  const std::string hello = Hello();
  const size_t before = OpenDescriptors();
  for (size_t cut = 0; cut <= hello.size(); ++cut) {
    RawClient client(server.listener->address());
    client.Send(absl::string_view(hello).substr(0, cut));
  }
  const std::string open = Open(0);
  for (size_t cut = 0; cut <= open.size(); cut += 5) {
    RawClient client(server.listener->address());
    client.SayHello();
    client.Send(absl::string_view(open).substr(0, cut));
  }
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
  CHECK(server.Serves());
}

TEST_CASE("random bytes at any place do no harm", "[bootstrap][hostile]") {
  Server server(absl::Milliseconds(100));
  std::mt19937 random(3);
  for (int i = 0; i < 200; ++i) {
    RawClient client(server.listener->address());
    if (i % 2 == 1) client.SayHello();
    std::string bytes = i % 4 < 2 ? Hello() : Open(1);
    for (int j = 0; j < 4; ++j) bytes[random() % bytes.size()] = static_cast<char>(random());
    client.Send(bytes);
  }
  CHECK(server.Serves());
}

TEST_CASE("a token is good once, an unknown one never", "[bootstrap][hostile]") {
  Server server;
  RawClient client(server.listener->address());
  wire::Hello reply = client.SayHello();
  char byte;
  absl::StatusOr<UniqueFd> first = ConnectAside(reply);
  REQUIRE(first.ok());
  CHECK(Eventually([&] {
    absl::StatusOr<UniqueFd> again = ConnectAside(reply);
    pollfd ended{again->get(), POLLIN, 0};
    return again.ok() && poll(&ended, 1, 1000) == 1 &&
           recv(again->get(), &byte, 1, MSG_DONTWAIT) == 0;
  }));
  reply.side_token = RandomToken();
  absl::StatusOr<UniqueFd> guessed = ConnectAside(reply);
  REQUIRE(guessed.ok());
  pollfd ended{guessed->get(), POLLIN, 0};
  CHECK(poll(&ended, 1, 1000) == 1);
  CHECK(recv(guessed->get(), &byte, 1, MSG_DONTWAIT) == 0);
  CHECK(server.lines.Count("token") == 1);
  // A bulk lane that nobody waits for.
  RawClient bulk(server.listener->address());
  bulk.Send(absl::StrCat("VBJ1", std::string(16, 't')));
  CHECK(bulk.ReceiveAll().empty());
}

TEST_CASE("a flood of descriptors is refused and nothing of it is kept", "[bootstrap][hostile]") {
  Server server;
  REQUIRE(server.Serves());
  const size_t before = OpenDescriptors();
  for (const size_t count : {2, 9, 200}) {
    RawClient client(server.listener->address());
    const wire::Hello reply = client.SayHello();
    absl::StatusOr<UniqueFd> side = ConnectAside(reply);
    REQUIRE(side.ok());
    const std::vector<int> fds(count, client.fd());
    char text[8] = {'V', 'F', 'D', 'S', 1, 0, 0, 0};
    iovec bytes{text, sizeof(text)};
    std::vector<char> room(CMSG_SPACE(count * sizeof(int)));
    msghdr header{};
    header.msg_iov = &bytes;
    header.msg_iovlen = 1;
    header.msg_control = room.data();
    header.msg_controllen = room.size();
    cmsghdr* const c = CMSG_FIRSTHDR(&header);
    c->cmsg_level = SOL_SOCKET;
    c->cmsg_type = SCM_RIGHTS;
    c->cmsg_len = CMSG_LEN(count * sizeof(int));
    memcpy(CMSG_DATA(c), fds.data(), count * sizeof(int));
    REQUIRE(sendmsg(side->get(), &header, 0) == sizeof(text));
    client.Send(Open(1));
    const absl::Status refusal = client.AwaitRefusal();
    CHECK(refusal.code() == StatusCode::kInvalidArgument);
    CHECK(refusal.message().find("descriptors") != absl::string_view::npos);
  }
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
  CHECK(server.Serves());
}

TEST_CASE("another user's process is refused, and one whose user nobody knows",
          "[bootstrap][hostile]") {
  ucred peer{};
  peer.uid = 1000;
  CHECK(CheckPeerUser(peer, 1000, 65534).ok());
  CHECK(CheckPeerUser(peer, 1001, 65534).code() == StatusCode::kPermissionDenied);
  // Both unknown: not the same.
  peer.uid = 65534;
  const absl::Status unknown = CheckPeerUser(peer, 65534, 65534);
  CHECK(unknown.code() == StatusCode::kPermissionDenied);
  CHECK(unknown.message().find("nobody, or in another user namespace") != absl::string_view::npos);

  if (geteuid() != 0) return;
  Server server;
  RawClient client(server.listener->address());
  const wire::Hello reply = client.SayHello();
  const pid_t child = fork();
  if (child == 0) {
    // The directory is closed to it; the abstract name is not, and must check.
    if (setuid(12345) != 0) _exit(2);
    sockaddr_un to{};
    to.sun_family = AF_UNIX;
    memcpy(to.sun_path + 1, reply.side_abstract.data(), reply.side_abstract.size());
    const int by_path = socket(AF_UNIX, SOCK_STREAM, 0), by_name = socket(AF_UNIX, SOCK_STREAM, 0);
    const auto bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + reply.side_abstract.size());
    if (connect(by_name, reinterpret_cast<sockaddr*>(&to), bytes) != 0) _exit(3);
    char byte;
    if (recv(by_name, &byte, 1, 0) != 0) _exit(4);
    memset(&to, 0, sizeof(to));
    to.sun_family = AF_UNIX;
    memcpy(to.sun_path, reply.side_path.data(), reply.side_path.size());
    _exit(connect(by_path, reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0 ? 5 : 0);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(server.lines.Count("user 12345") == 1);
  CHECK(server.lines.Count("not over shared memory") == 1);
}

// The number of a process that has ended.
pid_t EndedProcess() {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  REQUIRE(waitpid(child, nullptr, 0) == child);
  return child;
}

void BindAndClose(const std::string& path, bool listening_on) {
  static std::vector<UniqueFd> kept;
  UniqueFd fd(socket(AF_UNIX, SOCK_STREAM, 0));
  sockaddr_un to{};
  to.sun_family = AF_UNIX;
  REQUIRE(path.size() < sizeof(to.sun_path));
  memcpy(to.sun_path, path.data(), path.size());
  REQUIRE(bind(fd.get(), reinterpret_cast<sockaddr*>(&to), sizeof(to)) == 0);
  REQUIRE(listen(fd.get(), 1) == 0);
  if (listening_on) kept.push_back(std::move(fd));
}

TEST_CASE("a new listener removes the side sockets of processes that were killed, and no others",
          "[bootstrap][hostile]") {
  const std::string directory = absl::StrCat("/tmp/verbena-test-", getpid(), "-", RandomHex(4));
  REQUIRE(mkdir(directory.c_str(), 0700) == 0);
  const pid_t ended = EndedProcess();
  const auto name = [&](pid_t pid) {
    return absl::StrCat(directory, "/verbena-", pid, "-", RandomHex(8));
  };
  const std::string stale = name(ended), elsewhere = name(ended), alive = name(1);
  const std::string foreign = directory + "/another-service", file = name(ended);
  BindAndClose(stale, false);
  BindAndClose(elsewhere, true);  // somebody listens: a process of another PID namespace
  BindAndClose(alive, false);     // its process lives
  BindAndClose(foreign, false);
  std::ofstream(file) << "not a socket";
  std::string own;
  {
    const absl::StatusOr<SideListener> side = ListenAside(directory);
    REQUIRE(side.ok());
    own = side->path;
  }
  CHECK(access(own.c_str(), F_OK) == 0);
  CHECK(access(stale.c_str(), F_OK) != 0);
  for (const std::string& path : {elsewhere, alive, foreign, file}) {
    INFO(path);
    CHECK(access(path.c_str(), F_OK) == 0);
    unlink(path.c_str());
  }
  unlink(own.c_str());
  CHECK(rmdir(directory.c_str()) == 0);
}

TEST_CASE("a runtime directory that others can enter is not used", "[bootstrap][hostile]") {
  const std::string path = absl::StrCat("/tmp/verbena-test-", getpid(), "-", RandomHex(4));
  REQUIRE(mkdir(path.c_str(), 0755) == 0);
  CHECK(RuntimeDirectory(path).status().code() == StatusCode::kPermissionDenied);
  // Then the abstract name is all there is.
  const absl::StatusOr<SideListener> side = ListenAside(path);
  REQUIRE(side.ok());
  CHECK(side->path.empty());
  CHECK_FALSE(side->abstract_name.empty());
  CHECK(side->reason.find(path) != std::string::npos);
  REQUIRE(chmod(path.c_str(), 0700) == 0);
  CHECK(RuntimeDirectory(path).ok());
  const std::string link = path + "-link";
  REQUIRE(symlink(path.c_str(), link.c_str()) == 0);
  CHECK(RuntimeDirectory(link).status().code() == StatusCode::kPermissionDenied);
  unlink(link.c_str());
  rmdir(path.c_str());
}

TEST_CASE("silent peers in any number only delay an honest one", "[bootstrap][hostile]") {
  Server server(absl::Milliseconds(200));
  std::vector<std::unique_ptr<RawClient>> silent;
  for (uint32_t i = 0; i < limits::kHandshakesMax + 50; ++i) {
    silent.push_back(std::make_unique<RawClient>(server.listener->address()));
  }
  CHECK(server.Serves());
}

TEST_CASE("a listener ends with handshakes under way", "[bootstrap][hostile]") {
  const size_t before = OpenDescriptors();
  {
    Server server;
    RawClient silent(server.listener->address());
    RawClient half(server.listener->address());
    half.SayHello();
    server.listener.reset();
    CHECK(half.ReceiveAll().empty());
  }
  CHECK(Eventually([&] { return OpenDescriptors() <= before; }));
}

// What a client meets: `answer` gets the accepted connection.
absl::Status ConnectTo(const std::function<void(int)>& answer) {
  const UniqueFd listening(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  const SocketAddress any = ResolveNumeric(ParseAddress("127.0.0.1:0").value(), true).value()[0];
  REQUIRE(bind(listening.get(), any.get(), any.bytes) == 0);
  REQUIRE(listen(listening.get(), 10) == 0);
  std::thread server([&] {
    const UniqueFd stream(accept4(listening.get(), nullptr, nullptr, SOCK_CLOEXEC));
    answer(stream.get());
  });
  FakeEngine client({{.name = "fast", .passes_descriptors = true}});
  FakeOwner owner;
  ConnectOptions options;
  options.address = LocalText(listening.get());
  options.timeout = absl::Seconds(5);
  const absl::Status status = ConnectNow(client, options, owner).status();
  server.join();
  CHECK(client.reserved() == 0);
  CHECK(client.Fake("fast")->links() == 0);
  CHECK(status.message().find(options.address) != absl::string_view::npos);
  return status;
}

TEST_CASE("a client ends with the reason whatever its server does", "[bootstrap][hostile]") {
  char buffer[4096];
  wire::Hello reply;
  reply.open_calls_max = 10;
  reply.transports = {{"fast", ""}};
  const std::string good = wire::EncodeHello(HelloType::kHelloReply, reply);
  SECTION("closes at once") {
    CHECK(ConnectTo([](int) {}).code() == StatusCode::kUnavailable);
  }
  SECTION("closes in the middle of each message") {
    for (size_t cut = 1; cut < good.size(); cut += 7) {
      const absl::Status status = ConnectTo([&](int fd) {
        (void)!recv(fd, buffer, sizeof(buffer), 0);
        (void)!send(fd, good.data(), cut, MSG_NOSIGNAL);
      });
      CHECK(status.code() == StatusCode::kUnavailable);
    }
  }
  SECTION("refuses") {
    const absl::Status status = ConnectTo([&](int fd) {
      (void)!recv(fd, buffer, sizeof(buffer), 0);
      const std::string refuse = wire::EncodeRefuse(absl::ResourceExhaustedError("no room"));
      (void)!send(fd, refuse.data(), refuse.size(), MSG_NOSIGNAL);
      shutdown(fd, SHUT_WR);
      (void)!recv(fd, buffer, sizeof(buffer), 0);
    });
    CHECK(status.code() == StatusCode::kResourceExhausted);
    CHECK(status.message().find("no room") != absl::string_view::npos);
  }
  SECTION("speaks another version") {
    reply.version = 9;
    const std::string version = wire::EncodeHello(HelloType::kHelloReply, reply);
    const absl::Status status = ConnectTo([&](int fd) {
      (void)!recv(fd, buffer, sizeof(buffer), 0);
      (void)!send(fd, version.data(), version.size(), MSG_NOSIGNAL);
      (void)!recv(fd, buffer, sizeof(buffer), 0);
    });
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK(status.message().find("to 9") != absl::string_view::npos);
  }
  SECTION("speaks something else, or out of order") {
    for (const std::string& text :
         {std::string("HTTP/1.1 400 Bad Request\r\n\r\n"), Hello(), Open(0)}) {
      const absl::Status status = ConnectTo([&](int fd) {
        (void)!recv(fd, buffer, sizeof(buffer), 0);
        (void)!send(fd, text.data(), text.size(), MSG_NOSIGNAL);
        (void)!recv(fd, buffer, sizeof(buffer), 0);
      });
      CHECK(status.code() == StatusCode::kUnavailable);
    }
  }
  SECTION("names a side socket that is not there") {
    reply.side_path = "/nowhere";
    reply.side_abstract = "verbena-nobody";
    const std::string nowhere = wire::EncodeHello(HelloType::kHelloReply, reply);
    const absl::Status status = ConnectTo([&](int fd) {
      (void)!recv(fd, buffer, sizeof(buffer), 0);
      (void)!send(fd, nowhere.data(), nowhere.size(), MSG_NOSIGNAL);
      (void)!recv(fd, buffer, sizeof(buffer), 0);
    });
    CHECK(status.code() == StatusCode::kFailedPrecondition);
    CHECK(status.message().find("/nowhere") != absl::string_view::npos);
  }
}

}  // namespace verbena::session
