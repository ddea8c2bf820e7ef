#include "rpc/tool/transports.h"

#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/unique_fd.h"
#include "rpc/fabric/shm/shm_fabric.h"

namespace verbena::tool {
namespace {

constexpr int kWaitMs = 5000;

absl::Status Failed(absl::string_view call) {
  return absl::InternalError(absl::StrCat(call, ": ", std::strerror(errno)));
}

// One byte over a connection of this process to itself.
absl::Status TryTcp() {
  const UniqueFd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!listener) return Failed("socket");
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener.get(), generic, length) != 0) return Failed("bind to 127.0.0.1");
  if (listen(listener.get(), 1) != 0) return Failed("listen");
  if (getsockname(listener.get(), generic, &length) != 0) return Failed("getsockname");
  const UniqueFd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  if (!client) return Failed("socket");
  if (connect(client.get(), generic, length) != 0) return Failed("connect to 127.0.0.1");
  const UniqueFd server(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!server) return Failed("accept");
  char byte = 'v';
  if (send(client.get(), &byte, 1, MSG_NOSIGNAL) != 1) return Failed("send");
  pollfd wait{server.get(), POLLIN, 0};
  if (poll(&wait, 1, kWaitMs) != 1) return absl::DeadlineExceededError("a byte did not arrive");
  byte = 0;
  if (recv(server.get(), &byte, 1, 0) != 1 || byte != 'v') return Failed("recv");
  return absl::OkStatus();
}

TransportFacts Tried(std::string name, const absl::Status& status, std::string text) {
  TransportFacts facts;
  facts.name = std::move(name);
  facts.usable = status.ok();
  facts.text = status.ok() ? std::move(text) : std::string(status.message());
  return facts;
}

}  // namespace

std::vector<TransportFacts> TryTransports() {
  return {Tried("shm", fabric::shm::ShmUsable(), "a segment was made"),
          Tried("tcp", TryTcp(), "a byte went over 127.0.0.1")};
}

}  // namespace verbena::tool
