#pragma once
// Addresses as people write them: "host:port", "10.0.0.1:port", "[::1]:port", ":port" (to listen),
// "unix:/path".
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena::session {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
};

struct ParsedAddress {
  bool is_unix = false;
  std::string host;  // or the unix socket's path
  std::string port;
};

// INVALID_ARGUMENT shows the address and what it should look like.
absl::StatusOr<ParsedAddress> ParseAddress(absl::string_view text);
// Without asking anybody: UNAVAILABLE when the host is a name.
absl::StatusOr<std::vector<SocketAddress>> ResolveNumeric(const ParsedAddress& address,
                                                          bool listen);
// May block for seconds.
absl::StatusOr<std::vector<SocketAddress>> Resolve(const ParsedAddress& address, bool listen);
// "10.0.0.1:80", "[::1]:80", "unix:/path".
std::string AddressText(const SocketAddress& address);
std::string PeerText(int socket);
std::string LocalText(int socket);

}  // namespace verbena::session
