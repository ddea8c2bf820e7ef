#include "benchmarks/peers/raw/sockets.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"

namespace verbena::benchmarks {
namespace {

constexpr double kSpinSeconds = 0.002;

sockaddr_un UnixAddress(const std::string& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::strncpy(address.sun_path, path.c_str(), sizeof(address.sun_path) - 1);
  return address;
}

sockaddr_in LoopbackAddress(int port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(static_cast<uint16_t>(port));
  return address;
}

// As good as a raw socket gets: no delay, and no pacing where the system's default (bbr) has that.
// Both fail harmlessly on a unix socket.
void Prepare(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, "reno", 4);
}

bool Retry(ssize_t n) {
  return n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR);
}

}  // namespace

absl::StatusOr<int> Listen(const Params& params, std::string* address) {
  const bool tcp = params.transport() == "tcp";
  const int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
  int result = 0;
  if (tcp) {
    sockaddr_in a = LoopbackAddress(0);
    socklen_t length = sizeof(a);
    result = bind(fd, reinterpret_cast<sockaddr*>(&a), length);
    getsockname(fd, reinterpret_cast<sockaddr*>(&a), &length);
    *address = absl::StrCat(ntohs(a.sin_port));
  } else {
    *address = params.directory() + "/raw";
    const sockaddr_un a = UnixAddress(*address);
    result = bind(fd, reinterpret_cast<const sockaddr*>(&a), sizeof(a));
  }
  if (result != 0 || listen(fd, 16) != 0) return absl::ErrnoToStatus(errno, "bind or listen");
  return fd;
}

absl::StatusOr<int> ConnectTo(const Params& params) {
  const bool tcp = params.transport() == "tcp";
  const int fd = socket(tcp ? AF_INET : AF_UNIX, SOCK_STREAM, 0);
  int result = 0;
  if (tcp) {
    int port = 0;
    if (!absl::SimpleAtoi(params.address(), &port)) return absl::InvalidArgumentError("no port");
    const sockaddr_in a = LoopbackAddress(port);
    result = connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof(a));
  } else {
    const sockaddr_un a = UnixAddress(params.address());
    result = connect(fd, reinterpret_cast<const sockaddr*>(&a), sizeof(a));
  }
  if (result != 0) return absl::ErrnoToStatus(errno, "connect " + params.address());
  Prepare(fd);
  return fd;
}

int AcceptOne(int listener) {
  const int fd = accept(listener, nullptr, nullptr);
  if (fd >= 0) Prepare(fd);
  return fd;
}

bool SendSpinning(int fd, const char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, data, bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (Retry(n)) continue;
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveSpinning(int fd, char* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);
    if (Retry(n)) continue;
    if (n <= 0) return false;
    data += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool ReceiveOrSleep(int fd, char* data, size_t bytes) {
  const uint64_t sleep_after = Ticks() + TicksIn(kSpinSeconds);
  for (;;) {
    const ssize_t n = recv(fd, data, bytes, MSG_DONTWAIT);
    if (n > 0) return ReceiveSpinning(fd, data + n, bytes - static_cast<size_t>(n));
    if (!Retry(n)) return false;
    if (Ticks() < sleep_after) continue;
    pollfd p{fd, POLLIN, 0};
    poll(&p, 1, -1);
  }
}

}  // namespace verbena::benchmarks
