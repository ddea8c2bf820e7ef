#pragma once
// The unix socket beside a listener, on which processes of one user on one host pass descriptors.
// Who connects shows a single-use token that it got in HELLO_REPLY; both ends check the other's
// user as the kernel knows it.
#include <sys/socket.h>

#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/base/unique_fd.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

// The directory for side sockets: `configured`, or "verbena-<uid>" under $XDG_RUNTIME_DIR or /tmp.
// Made with mode 0700 where it is missing; PERMISSION_DENIED when it is another user's, a link, or
// open to others.
absl::StatusOr<std::string> RuntimeDirectory(const std::string& configured);

struct SideListener {
  UniqueFd by_path;      // -1: `path` is empty
  UniqueFd by_abstract;  // -1: `abstract_name` is empty
  std::string path;
  std::string abstract_name;
  std::string reason;  // why not by path
};
// Removes the side sockets that killed processes of this user left in a runtime directory: those
// of a process that is gone and on which nobody listens (the process may live in another PID
// namespace).
void RemoveStaleSockets(const std::string& directory);
// Listens on both names, or on what works; an error when neither does. Removes stale ones.
absl::StatusOr<SideListener> ListenAside(const std::string& directory);

// The client's end: connects by path, else by the abstract name, checks the listener's user and
// sends the token.
absl::StatusOr<UniqueFd> ConnectAside(const wire::Hello& reply);

// PERMISSION_DENIED unless the peer has this process's user, and one that the kernel can name (in
// another user namespace every user looks like the overflow user).
absl::Status CheckPeerUser(const ucred& peer, uid_t self, uid_t overflow);
absl::Status CheckPeerUser(int socket);
uid_t OverflowUid();

// One message with at most wire::kHelloDescriptorsMax descriptors. Neither blocks.
absl::Status SendDescriptors(int socket, const std::vector<int>& fds);
// Exactly `count` of them; any error closes what came.
absl::StatusOr<std::vector<int>> ReceiveDescriptors(int socket, size_t count);

// Readable when the process at the other end dies; -1 = the kernel cannot tell.
UniqueFd PeerPidfd(int socket);

}  // namespace verbena::session
