#include "rpc/base/keep_alive.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

namespace verbena {
namespace {

constexpr int kIdleSeconds = 5;
constexpr int kIntervalSeconds = 2;
constexpr int kProbes = 3;

// Each is an improvement, none is needed.
void SetInt(int fd, int level, int name, int value) {
  (void)setsockopt(fd, level, name, &value, sizeof value);
}

}  // namespace

void KeepAlive(int fd) {
  SetInt(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPIDLE, kIdleSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPINTVL, kIntervalSeconds);
  SetInt(fd, IPPROTO_TCP, TCP_KEEPCNT, kProbes);
}

}  // namespace verbena
