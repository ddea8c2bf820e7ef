#pragma once
// Socket calls of the tcp fabric, over TCP and unix stream sockets alike.
#include <sys/socket.h>

#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace verbena::fabric::tcp {

struct Address {
  sockaddr_storage storage{};
  socklen_t bytes = 0;
};

// Non-blocking, no delay, keepalive, closed in children of fork(); a peer that acknowledges nothing
// for 30 s is gone.
void PrepareSocket(int fd);

// Once it is connected or connecting: where both ends have one address, its bytes are not paced.
void UnpaceWithinHost(int fd);

// UNAVAILABLE: the socket is not connected.
absl::StatusOr<Address> PeerOf(int fd);
absl::StatusOr<Address> LocalOf(int fd);
uint16_t PortOf(const Address& address);
// The same host, another port; unix addresses stay as they are.
Address WithPort(Address address, uint16_t port);

// Starts a connection; it may still be under way when this returns. Blocks for at most a second,
// where a unix socket's backlog is full.
absl::StatusOr<int> StartConnect(const Address& address);
// Listens on any port of that host.
absl::StatusOr<int> ListenBeside(const Address& address);

// "tcp: WHAT: the system's words" of errno.
absl::Status SystemError(absl::StatusCode code, const char* what);

// From the kernel's generator.
void FillRandom(void* to, size_t bytes);

// Ends the conversation also where a forked child holds the socket, and closes it.
void EndSocket(int& fd);

}  // namespace verbena::fabric::tcp
