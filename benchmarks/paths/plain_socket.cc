#include "benchmarks/paths/plain_socket.h"

#include <arpa/inet.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

#include "rpc/base/check.h"
#include "tests/gpu/machine/user_memory.h"

namespace verbena::benchmarks::paths {
namespace {

sockaddr_in Loopback(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

constexpr size_t kHotBytes = 1 << 20;

// Exactly `bytes`; false at the end of the stream.
bool SendAll(int fd, const std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = send(fd, data, bytes, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}
bool ReceiveAll(int fd, std::byte* data, size_t bytes) {
  while (bytes > 0) {
    const ssize_t n = recv(fd, data, bytes, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return false;
    data += n, bytes -= static_cast<size_t>(n);
  }
  return true;
}

}  // namespace

PlainSender::PlainSender(Buffer memory) : memory_(std::move(memory)), host_(memory_.bytes()) {
  listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = Loopback(0);
  socklen_t length = sizeof address;
  auto* const any = reinterpret_cast<sockaddr*>(&address);
  VERBENA_CHECK(bind(listener_, any, length) == 0 && listen(listener_, 4) == 0);
  VERBENA_CHECK(getsockname(listener_, any, &length) == 0);
  port_ = ntohs(address.sin_port);
  thread_ = std::thread([this] { Serve(); });
}

PlainSender::~PlainSender() {
  shutdown(listener_, SHUT_RDWR);
  thread_.join();
  close(listener_);
}

void PlainSender::Serve() {
  for (int fd; (fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC)) >= 0; close(fd)) {
    const int on = 1;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    std::byte way{};
    while (ReceiveAll(fd, &way, 1)) {
      if (way == std::byte{static_cast<uint8_t>(PlainWay::kGpu)}) {
        gpu_test::CopyNow(0, host_.data(), memory_.data(), memory_.bytes());
      }
      const bool hot = way == std::byte{static_cast<uint8_t>(PlainWay::kHotOnly)};
      const size_t once = hot ? std::min(kHotBytes, host_.size()) : host_.size();
      bool sent = true;
      for (size_t left = host_.size(); sent && left > 0; left -= std::min(once, left)) {
        sent = SendAll(fd, host_.data(), std::min(once, left));
      }
      if (!sent) break;
    }
  }
}

PlainReader::PlainReader(uint16_t port, size_t bytes) : host_(bytes) {
  fd_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const sockaddr_in address = Loopback(port);
  VERBENA_CHECK(connect(fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0);
}

PlainReader::~PlainReader() { close(fd_); }

absl::Status PlainReader::Read(PlainWay way, int gpu, std::byte* to) {
  const auto ask = std::byte{static_cast<uint8_t>(way)};
  const size_t once = way == PlainWay::kHotOnly ? std::min(kHotBytes, host_.size()) : host_.size();
  bool there = SendAll(fd_, &ask, 1);
  for (size_t left = host_.size(); there && left > 0; left -= std::min(once, left)) {
    there = ReceiveAll(fd_, host_.data(), std::min(once, left));
  }
  if (!there) return absl::UnavailableError("the plain socket's other end is gone");
  if (way == PlainWay::kGpu) gpu_test::CopyNow(gpu, to, host_.data(), host_.size());
  return absl::OkStatus();
}

}  // namespace verbena::benchmarks::paths
