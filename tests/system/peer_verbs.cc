// "verbs" of a server: what its verbs fabrics hold and have counted, added up.
#include <atomic>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/verbs/verbs_fabric.h"
#include "rpc/reactor/reactors.h"
#include "rpc/session/engines.h"
#include "tests/system/peer.h"

namespace verbena::system_test {
namespace {

using fabric::verbs::VerbsFabric;

// Counts one reactor's, in its seat.
struct Count : reactor::Work {
  explicit Count(reactor::Reactor& reactor)
      : Work([](reactor::Work* work) { static_cast<Count*>(work)->Run(); }),
        engine(session::EngineOf(reactor)) {
    reactor.PostSeat(*this);
    reactor.DriveUntil(done);
  }
  void Run() {
    const auto* const verbs = static_cast<VerbsFabric*>(engine.FindFabric("verbs"));
    if (verbs != nullptr) {
      counters = verbs->counters();
      links_max = verbs->sizes().links_max;
    }
    reactor::Reactor& reactor = engine.reactor();
    done.store(1, std::memory_order_release);
    reactor.Wake(done);
  }
  session::Engine& engine;
  fabric::verbs::FabricCounters counters;
  uint64_t links_max = 0;
  std::atomic<uint32_t> done{0};
};

}  // namespace

std::string VerbsState() {
  uint64_t links_max = 0, refused = 0, receive_bytes = 0, pairs = 0, windows = 0, used = 0;
  for (reactor::Reactor* reactor : reactor::Reactors()) {
    const Count count(*reactor);
    links_max += count.links_max;
    refused += count.counters.links_refused;
    receive_bytes += count.counters.receive_bytes;
    pairs += count.counters.queue_pairs;
    windows += count.counters.windows;
    used += count.counters.windows_used;
  }
  return absl::StrCat("links_max=", links_max, " refused=", refused,
                      " receive_bytes=", receive_bytes, " queue_pairs=", pairs,
                      " windows=", windows, " windows_used=", used);
}

}  // namespace verbena::system_test
