#include "rpc/session/address.h"

#include <netdb.h>
#include <netinet/in.h>
#include <sys/un.h>

#include <cstring>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"

namespace verbena::session {
namespace {

absl::StatusOr<std::vector<SocketAddress>> LookUp(const ParsedAddress& address, int flags) {
  if (address.is_unix) {
    SocketAddress result;
    auto* const un = reinterpret_cast<sockaddr_un*>(&result.storage);
    if (address.host.size() >= sizeof(un->sun_path)) {
      return absl::InvalidArgumentError(absl::StrCat("unix:", address.host, ": a path of ",
                                                     address.host.size(), " bytes, at most ",
                                                     sizeof(un->sun_path) - 1));
    }
    un->sun_family = AF_UNIX;
    std::memcpy(un->sun_path, address.host.data(), address.host.size());
    result.bytes =
        static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + address.host.size() + 1);
    return std::vector<SocketAddress>{result};
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = flags | AI_NUMERICSERV;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(address.host.empty() ? nullptr : address.host.c_str(),
                                  address.port.c_str(), &hints, &found);
  if (error != 0) {
    return absl::UnavailableError(
        absl::StrCat("cannot resolve \"", address.host, "\": ", ::gai_strerror(error)));
  }
  std::vector<SocketAddress> results;
  for (const addrinfo* at = found; at != nullptr; at = at->ai_next) {
    if (at->ai_addrlen > sizeof(sockaddr_storage)) continue;
    SocketAddress result;
    std::memcpy(&result.storage, at->ai_addr, at->ai_addrlen);
    result.bytes = at->ai_addrlen;
    results.push_back(result);
  }
  ::freeaddrinfo(found);
  if (results.empty()) {
    return absl::UnavailableError(absl::StrCat("\"", address.host, "\" has no address"));
  }
  return results;
}

template <class Get>
std::string TextOf(int socket, Get get) {
  SocketAddress address;
  address.bytes = sizeof(address.storage);
  if (get(socket, reinterpret_cast<sockaddr*>(&address.storage), &address.bytes) != 0)
    return "unknown";
  return AddressText(address);
}

}  // namespace

absl::StatusOr<ParsedAddress> ParseAddress(absl::string_view text) {
  ParsedAddress parsed;
  absl::string_view rest = text;
  if (absl::ConsumePrefix(&rest, "unix:")) {
    parsed.is_unix = true;
    parsed.host = std::string(rest);
    if (!rest.empty() && rest.find('\0') == absl::string_view::npos) return parsed;
  } else {
    const size_t colon = rest.rfind(':');
    uint32_t port = 0;
    if (colon != absl::string_view::npos && absl::SimpleAtoi(rest.substr(colon + 1), &port) &&
        port <= 65535) {
      absl::string_view host = rest.substr(0, colon);
      const bool bracketed = absl::ConsumePrefix(&host, "[");
      const bool closed = absl::ConsumeSuffix(&host, "]");
      // A bare IPv6 address would be ambiguous.
      if (bracketed == closed && (bracketed || !absl::StrContains(host, ":"))) {
        parsed.host = std::string(host);
        parsed.port = absl::StrCat(port);
        return parsed;
      }
    }
  }
  return absl::InvalidArgumentError(absl::StrCat(
      "\"", text,
      "\" is no address: write host:port, [ipv6]:port, :port to listen on all, or unix:/path"));
}

absl::StatusOr<std::vector<SocketAddress>> ResolveNumeric(const ParsedAddress& address,
                                                          bool listen) {
  return LookUp(address, AI_NUMERICHOST | (listen ? AI_PASSIVE : 0));
}

absl::StatusOr<std::vector<SocketAddress>> Resolve(const ParsedAddress& address, bool listen) {
  return LookUp(address, listen ? AI_PASSIVE : 0);
}

std::string AddressText(const SocketAddress& address) {
  if (address.family() == AF_UNIX) {
    const auto* const un = reinterpret_cast<const sockaddr_un*>(&address.storage);
    const size_t room = address.bytes > offsetof(sockaddr_un, sun_path)
                            ? address.bytes - offsetof(sockaddr_un, sun_path)
                            : 0;
    return absl::StrCat("unix:", std::string(un->sun_path, ::strnlen(un->sun_path, room)));
  }
  char host[NI_MAXHOST], port[NI_MAXSERV];
  if (::getnameinfo(address.get(), address.bytes, host, sizeof(host), port, sizeof(port),
                    NI_NUMERICHOST | NI_NUMERICSERV) != 0) {
    return "unknown";
  }
  return address.family() == AF_INET6 ? absl::StrCat("[", host, "]:", port)
                                      : absl::StrCat(host, ":", port);
}

std::string PeerText(int socket) { return TextOf(socket, ::getpeername); }
std::string LocalText(int socket) { return TextOf(socket, ::getsockname); }

}  // namespace verbena::session
