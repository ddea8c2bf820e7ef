// What a channel does while its server cannot be had.
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

// Closes each connection as soon as it is there, and counts them.
class Slammer {
 public:
  Slammer() : fd_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t bytes = sizeof(address);
    auto* const any = reinterpret_cast<sockaddr*>(&address);
    REQUIRE(bind(fd_, any, bytes) == 0);
    REQUIRE(listen(fd_, 16) == 0);
    REQUIRE(getsockname(fd_, any, &bytes) == 0);
    address_ = absl::StrCat("127.0.0.1:", ntohs(address.sin_port));
    thread_ = std::thread([this] {
      for (int stream; (stream = accept(fd_, nullptr, nullptr)) >= 0; close(stream)) ++attempts_;
    });
  }
  ~Slammer() {
    shutdown(fd_, SHUT_RDWR);
    thread_.join();
    close(fd_);
  }
  const std::string& address() const { return address_; }
  int attempts() const { return attempts_; }

 private:
  const int fd_;
  std::string address_;
  std::atomic<int> attempts_{0};
  std::thread thread_;
};

TEST_CASE("a channel waits between its attempts, longer each time, up to the longest",
          "[client][channel]") {
  Slammer slammer;
  test::Greeter::Stub stub(Channel::Create(
      slammer.address(),
      ChannelOptions().set_backoff(absl::Milliseconds(20), absl::Milliseconds(40))));
  const absl::Time began = absl::Now();
  auto call = stub.SayHello(RequestFor("a"), CallOptions().set_wait_for_ready(true));
  REQUIRE(Eventually([&] { return slammer.attempts() >= 5; }));
  const int attempts = slammer.attempts();
  const absl::Duration took = absl::Now() - began;
  // 20, 32, 40, 40, ... ms, each 20 % shorter at the most. A busy machine may see more than five.
  CHECK(took >= 0.8 * (absl::Milliseconds(20 + 32) + absl::Milliseconds(40) * (attempts - 3)));
  CHECK_FALSE(call.done());
}

TEST_CASE("while a channel waits, calls that do not end with the reason", "[client][channel]") {
  Slammer slammer;
  test::Greeter::Stub stub(Channel::Create(
      slammer.address(), ChannelOptions().set_backoff(absl::Seconds(30), absl::Seconds(30))));
  for (int i = 0; i < 20; ++i) {
    const absl::Status status = stub.SayHello(RequestFor("a")).Get().status();
    REQUIRE_CODE(status, kUnavailable);
    REQUIRE(status.message().find(slammer.address()) != absl::string_view::npos);
  }
  CHECK(slammer.attempts() == 1);
}

}  // namespace
}  // namespace verbena
