#pragma once
// session::Engine: all links of one reactor, and the fabrics they run on. Fabrics' events come in
// here; what is queued for peers goes out at the end of each tick and, within one, every
// traits().publish_bytes.
#include <memory>
#include <string>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "rpc/base/slowdown.h"
#include "rpc/fabric/fabric.h"
#include "rpc/reactor/reactor.h"
#include "rpc/session/session.h"

namespace verbena::session {

struct EngineOptions {
  absl::Duration revoke_grace = absl::Milliseconds(5);
  absl::Duration reply_lease_age_max = absl::Seconds(30);
  absl::Duration prove_timeout = absl::Seconds(1) * kSlowdown;
  absl::Duration admission_timeout = absl::Seconds(10);
  uint64_t announced_bytes_max = uint64_t{64} << 30;  // per link: leased to it and not yet released
  uint64_t fetching_bytes_max = uint64_t{16}
                                << 30;  // per link: destinations of fetches admitted at once
};

// What both HELLOs agreed on, for one link.
struct LinkSetup {
  fabric::Fabric* fabric = nullptr;
  LinkId id = LinkId::kNone;
  fabric::Side side = fabric::Side::kClient;
  LinkInfo info;
  uint64_t peer_incarnation = 0;
  uint32_t open_calls_max = 0;      // the smaller of both
  uint32_t peer_segment_bytes = 0;  // the smaller of both is the link's
  int stream_fd =
      -1;  // owned by the link: watched for the peer's death (unless the fabric took it)
  int peer_pidfd = -1;                 // owned; -1 = unknown
  absl::Duration reply_lease_age_max;  // zero = the engine's
};

class Engine {
 public:
  // The engine registers itself with the reactor as its poller. `fabrics` in order of preference.
  static std::unique_ptr<Engine> Create(reactor::Reactor& reactor,
                                        std::vector<std::unique_ptr<fabric::Fabric>> fabrics,
                                        const EngineOptions& options);
  // All links must be down.
  virtual ~Engine() = default;

  virtual reactor::Reactor& reactor() = 0;
  // Null when this process does not have it.
  virtual fabric::Fabric* FindFabric(absl::string_view name) = 0;
  virtual absl::Span<const std::unique_ptr<fabric::Fabric>> fabrics() const = 0;

  // Any thread. A number for a link about to be set up; RESOURCE_EXHAUSTED names
  // kLinksPerReactorMax.
  virtual absl::StatusOr<LinkId> ReserveLink() = 0;
  virtual void ReturnLink(LinkId id) = 0;  // set-up failed before Adopt

  // In the seat, after fabric->Complete: starts the link, exchanges READY, proves one SEND and one
  // pattern READ within prove_timeout, then tells the owner or the sink OnLinkUp and calls
  // `proved(OK)`; else `proved(why)` and the link is closed without its owner hearing of it, so
  // that set-up can try the next transport. Exactly one of owner and sink.
  virtual void Adopt(const LinkSetup& setup, LinkOwner* owner, RequestSink* sink,
                     absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> proved) = 0;

  // In the seat. Links up now, for drain and statistics.
  virtual std::vector<Link*> Links() = 0;

  // Counters of this engine, for tests and statistics. In the seat.
  struct Counters {
    uint64_t frames_sent = 0, frames_received = 0, messages_sent = 0, messages_received = 0;
    uint64_t reads = 0, read_bytes = 0, leases_live = 0, leases_forced = 0;
    uint64_t credit_stalls = 0, unknown_calls = 0, calls_live = 0, fetches_live = 0;
  };
  virtual Counters counters() const = 0;
};

}  // namespace verbena::session
