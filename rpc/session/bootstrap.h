#pragma once
// Set-up of links: one listening address, HELLO, transports tried best first, until one is proved.
// Runs on the watch and setup threads; reactors only get finished links (Engine::Adopt).
// PROTOCOL.md in rpc/wire describes the exchange.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/session/engine.h"

namespace verbena::session {

struct ConnectOptions {
  std::string address;  // "host:port" (resolved here, off the reactor) or "unix:/path"
  std::vector<std::string> transports;  // allowed, best first; empty = all that this process has
  absl::Duration timeout = absl::Seconds(20);
};

// Starts one attempt; never blocks. `done` runs once, in the seat of `engine`'s reactor, with a
// proved link or the reason: UNAVAILABLE (refused, timed out, closed: names address and cause),
// FAILED_PRECONDITION (no allowed transport works: names each with its reason; UNAVAILABLE where
// one was merely not proved in time, or its peer went), RESOURCE_EXHAUSTED (the server refused: its
// words). Any thread.
void Connect(Engine& engine, const ConnectOptions& options, LinkOwner& owner,
             absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> done);

struct ListenOptions {
  std::string address;  // "host:port", ":port" or "[::]:0" (any port), or "unix:/path"
  std::vector<std::string> transports;                  // offered; empty = all
  uint32_t connections_max = 16 * 1024;                 // more are refused with RESOURCE_EXHAUSTED
  absl::Duration handshake_timeout = absl::Seconds(5);  // a peer that connects and says nothing
  absl::Duration reply_lease_age_max;                   // of its links; zero = the engine's
  std::string
      runtime_directory;  // for the side sockets; empty = $XDG_RUNTIME_DIR or /tmp, mode 0700
};

class Listener {
 public:
  // Links are spread over `engines` in turn. ALREADY_EXISTS/UNAVAILABLE name the address and the
  // system's reason.
  static absl::StatusOr<std::unique_ptr<Listener>> Listen(const ListenOptions& options,
                                                          std::vector<Engine*> engines,
                                                          RequestSink& sink);
  // Stops accepting; handshakes under way are closed. Links live on. Any thread but a reactor's.
  virtual ~Listener() = default;
  // With the port that was bound.
  virtual const std::string& address() const = 0;
};

}  // namespace verbena::session
