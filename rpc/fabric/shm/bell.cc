#include "rpc/fabric/shm/bell.h"

#include <poll.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdint>

namespace verbena::fabric::shm {
namespace {

bool Ready(int bell, short events) {
  pollfd one{bell, events, 0};
  return poll(&one, 1, 0) == 1 && (one.revents & events) != 0;
}

}  // namespace

void RingBell(int bell) {
  if (!Ready(bell, POLLOUT)) return;  // a full counter is as readable as any
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t n = write(bell, &one, sizeof one);
}

bool TakeRings(int bell) {
  uint64_t rings = 0;
  const iovec part{&rings, sizeof rings};
  ssize_t n = preadv2(bell, &part, 1, -1, RWF_NOWAIT);
  // Before Linux 5.8.
  if (n < 0 && errno == EOPNOTSUPP && Ready(bell, POLLIN)) n = read(bell, &rings, sizeof rings);
  return n == sizeof rings;
}

}  // namespace verbena::fabric::shm
