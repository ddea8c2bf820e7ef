#include "rpc/session/engines.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/available.h"
#include "rpc/memory/device.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"

namespace verbena::session {
namespace {

constexpr uint64_t kReservedBytes = 1 << 20;

struct Engines {
  absl::Mutex mutex;
  absl::flat_hash_map<reactor::Reactor*, Engine*> of ABSL_GUARDED_BY(mutex);
};

Engine* Make(reactor::Reactor& reactor) {
  fabric::FabricOptions options;
  options.host = &memory::HostDevice();
  options.post_setup = [](absl::AnyInvocable<void() &&> job) {
    reactor::PostSetup(std::move(job));
  };
  options.numa_node = reactor.options().numa_node;
  // What the first links and messages need is there before them.
  reactor::PostGrowth([node = reactor.options().numa_node] {
    const absl::Status reserved = memory::PoolOfNode(node).Reserve(kReservedBytes);
    if (!reserved.ok()) VERBENA_LOG(kWarning, "no memory to begin with: ", reserved.message());
  });
  return Engine::Create(reactor, fabric::MakeFabrics(options), EngineOptions()).release();
}

}  // namespace

Engine& EngineOf(reactor::Reactor& reactor) {
  static Engines* const engines = new Engines;
  {
    absl::MutexLock lock(&engines->mutex);
    const auto found = engines->of.find(&reactor);
    if (found != engines->of.end()) return *found->second;
  }
  // The seat first, then the lock: a handler that makes a channel holds the seat already.
  const bool seated = reactor.InSeat();
  while (!seated && !reactor.TryEnter()) absl::SleepFor(absl::Microseconds(20));
  Engine* engine;
  {
    absl::MutexLock lock(&engines->mutex);
    Engine*& slot = engines->of[&reactor];
    if (slot == nullptr) slot = Make(reactor);
    engine = slot;
  }
  if (!seated) reactor.Leave();
  return *engine;
}

}  // namespace verbena::session
