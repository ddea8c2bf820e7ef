#pragma once
// What both ends of the handshake share: checks of what the peer says, and the pieces of a
// LinkSetup.
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rpc/base/unique_fd.h"
#include "rpc/session/address.h"
#include "rpc/session/engine.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

// A frame must at least hold the handshake of a lane, and the keys of a payload in as many pieces
// as there may be.
inline constexpr uint32_t kSegmentBytesMin = 4096;

absl::Status CheckTerms(const wire::Hello& peer);
absl::Status CheckSegment(const wire::OpenMessage& peer);
absl::Status VersionMismatch(const wire::Hello& peer);

// After the fabric's Complete. Without sockets, `why`, peer and its segment.
LinkSetup MakeSetup(fabric::Fabric* fabric, LinkId id, fabric::Side side, const wire::Hello& peer);

// For the setup thread: abandons a link that was prepared and returns its number.
absl::AnyInvocable<bool() &&> GiveUp(Engine& engine, fabric::Fabric* fabric, LinkId id,
                                     bool prepared);

// `what` went wrong with that transport, which is named once: fabrics mostly say their name.
std::string NamedOnce(absl::string_view transport, absl::string_view what);

// Closes all, keeps their count.
void CloseDescriptors(std::vector<int>& fds);

// A socket that connects, non-blocking; -1: errno says why not.
UniqueFd StartConnect(const SocketAddress& address);
void SetNoDelay(int socket);

}  // namespace verbena::session
