#include "rpc/session/link_terms.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/fork.h"
#include "rpc/base/limits.h"

namespace verbena::session {

absl::Status CheckTerms(const wire::Hello& peer) {
  if (peer.open_calls_max == 0)
    return absl::InvalidArgumentError("bad handshake: 0 calls may be open, at least 1");
  return absl::OkStatus();
}

absl::Status CheckSegment(const wire::OpenMessage& peer) {
  if (peer.segment_bytes >= kSegmentBytesMin) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat("bad handshake: frames of ", peer.segment_bytes,
                                                 " bytes, at least ", kSegmentBytesMin));
}

absl::Status VersionMismatch(const wire::Hello& peer) {
  return absl::FailedPreconditionError(absl::StrCat(
      "the peer speaks protocol versions ", peer.version_oldest, " to ", peer.version,
      ", this process ", wire::kProtocolVersionOldest, " to ", wire::kProtocolVersion));
}

LinkSetup MakeSetup(fabric::Fabric* fabric, LinkId id, fabric::Side side, const wire::Hello& peer) {
  LinkSetup setup;
  setup.fabric = fabric;
  setup.id = id;
  setup.side = side;
  setup.info.transport = std::string(fabric->traits().name);
  setup.info.bounds_enforced = fabric->traits().bounds_enforced;
  setup.info.revocation = fabric->traits().revocation;
  setup.info.read_ways = fabric->ReadWays(id);
  std::memcpy(&setup.peer_incarnation, peer.incarnation.data(), sizeof(setup.peer_incarnation));
  setup.open_calls_max = std::min(limits::kOpenCallsMax, peer.open_calls_max);
  return setup;
}

absl::AnyInvocable<bool() &&> GiveUp(Engine& engine, fabric::Fabric* fabric, LinkId id,
                                     bool prepared) {
  return [&engine, fabric, id, prepared] {
    if (prepared) fabric->Abandon(id);
    engine.ReturnLink(id);
    return true;
  };
}

std::string NamedOnce(absl::string_view transport, absl::string_view what) {
  const std::string prefix = absl::StrCat(transport, ": ");
  return absl::StartsWith(what, prefix) ? std::string(what) : absl::StrCat(prefix, what);
}

void CloseDescriptors(std::vector<int>& fds) {
  for (int& fd : fds) {
    if (fd >= 0) ::close(fd);
    fd = -1;
  }
}

UniqueFd StartConnect(const SocketAddress& address) {
  UniqueFd fd(::socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd) return fd;
  CloseInForkChild(fd.get());
  if (address.family() != AF_UNIX) SetNoDelay(fd.get());
  // Unix sockets connect at once or not at all; their EAGAIN means a full backlog.
  if (::connect(fd.get(), address.get(), address.bytes) != 0 && errno != EINPROGRESS) {
    const int error = errno;
    fd.Reset();
    errno = error;
  }
  return fd;
}

void SetNoDelay(int socket) {
  const int on = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

}  // namespace verbena::session
