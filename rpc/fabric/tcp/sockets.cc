#include "rpc/fabric/tcp/sockets.h"

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/random.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/fork.h"
#include "rpc/base/keep_alive.h"

namespace verbena::fabric::tcp {
namespace {

// A peer that is gone without a word is noticed after this where something is under way, and else
// by keep_alive.h. Lower, and a slow network or a debugger ends links.
constexpr int kUnackedMs = 30'000;

constexpr int kBacklogTries = 100;
constexpr useconds_t kBacklogWaitUs = 10'000;

void SetInt(int fd, int level, int name, int value) {
  // Each is an improvement, none is needed; a unix socket has none of TCP's.
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

bool SameHost(const Address& a, const Address& b) {
  if (a.storage.ss_family != b.storage.ss_family) return false;
  if (a.storage.ss_family == AF_INET) {
    const auto& x = reinterpret_cast<const sockaddr_in&>(a.storage);
    const auto& y = reinterpret_cast<const sockaddr_in&>(b.storage);
    return x.sin_addr.s_addr == y.sin_addr.s_addr;
  }
  if (a.storage.ss_family != AF_INET6) return false;
  const auto& x = reinterpret_cast<const sockaddr_in6&>(a.storage);
  const auto& y = reinterpret_cast<const sockaddr_in6&>(b.storage);
  return IN6_ARE_ADDR_EQUAL(&x.sin6_addr, &y.sin6_addr);
}

}  // namespace

void PrepareSocket(int fd) {
  const int flags = fcntl(fd, F_GETFL);
  (void)fcntl(fd, F_SETFL, flags | O_NONBLOCK);
  (void)fcntl(fd, F_SETFD, FD_CLOEXEC);
  CloseInForkChild(fd);
  SetInt(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  KeepAlive(fd);
  SetInt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, kUnackedMs);
}

// A system may pace all connections (bbr). Between two sockets of one host that only sets timers:
// measured here, a bulk stream runs at half of its speed. Reno is in every kernel, and every
// process may ask for it.
void UnpaceWithinHost(int fd) {
  const absl::StatusOr<Address> here = LocalOf(fd), there = PeerOf(fd);
  if (here.ok() && there.ok() && SameHost(*here, *there)) {
    constexpr char kReno[] = "reno";
    (void)setsockopt(fd, IPPROTO_TCP, TCP_CONGESTION, kReno, sizeof kReno - 1);
  }
}

absl::StatusOr<Address> PeerOf(int fd) {
  Address address;
  address.bytes = sizeof address.storage;
  if (getpeername(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return SystemError(absl::StatusCode::kUnavailable, "the link's socket has no peer");
  }
  return address;
}

absl::StatusOr<Address> LocalOf(int fd) {
  Address address;
  address.bytes = sizeof address.storage;
  if (getsockname(fd, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0) {
    return SystemError(absl::StatusCode::kUnavailable, "the link's socket has no address");
  }
  return address;
}

uint16_t PortOf(const Address& address) {
  if (address.storage.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in&>(address.storage).sin_port);
  }
  if (address.storage.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6&>(address.storage).sin6_port);
  }
  return 0;
}

Address WithPort(Address address, uint16_t port) {
  if (address.storage.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(address.storage).sin_port = htons(port);
  } else if (address.storage.ss_family == AF_INET6) {
    reinterpret_cast<sockaddr_in6&>(address.storage).sin6_port = htons(port);
  }
  return address;
}

absl::StatusOr<int> StartConnect(const Address& address) {
  int fd = socket(address.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(absl::StatusCode::kResourceExhausted, "socket");
  PrepareSocket(fd);
  for (int tries = 0;; ++tries) {
    const auto* to = reinterpret_cast<const sockaddr*>(&address.storage);
    if (connect(fd, to, address.bytes) == 0 || errno == EINPROGRESS) {
      UnpaceWithinHost(fd);
      return fd;
    }
    if (errno == EINTR) continue;
    if (errno != EAGAIN || tries == kBacklogTries) break;
    usleep(kBacklogWaitUs);
  }
  const absl::Status status =
      SystemError(absl::StatusCode::kUnavailable, "connect for a bulk lane");
  close(fd);
  return status;
}

absl::StatusOr<int> ListenBeside(const Address& address) {
  const Address any = WithPort(address, 0);
  const int fd = socket(any.storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
  if (fd < 0) return SystemError(absl::StatusCode::kResourceExhausted, "socket");
  if (bind(fd, reinterpret_cast<const sockaddr*>(&any.storage), any.bytes) != 0 ||
      listen(fd, SOMAXCONN) != 0) {
    const absl::Status status =
        SystemError(absl::StatusCode::kUnavailable, "listen for bulk lanes");
    close(fd);
    return status;
  }
  return fd;
}

absl::Status SystemError(absl::StatusCode code, const char* what) {
  return absl::Status(code, absl::StrCat("tcp: ", what, ": ", strerror(errno)));
}

void FillRandom(void* to, size_t bytes) {
  // Up to 256 bytes come whole.
  VERBENA_CHECK(bytes <= 256 && getrandom(to, bytes, 0) == static_cast<ssize_t>(bytes));
}

void EndSocket(int& fd) {
  if (fd < 0) return;
  (void)shutdown(fd, SHUT_RDWR);
  close(fd);
  fd = -1;
}

}  // namespace verbena::fabric::tcp
