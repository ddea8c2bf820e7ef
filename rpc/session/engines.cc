#include "rpc/session/engines.h"

#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "rpc/fabric/available.h"

namespace verbena::session {
namespace {

struct Engines {
  absl::Mutex mutex;
  absl::flat_hash_map<reactor::Reactor*, Engine*> of ABSL_GUARDED_BY(mutex);
};

Engine* Make(reactor::Reactor& reactor) {
  return Engine::Create(reactor, fabric::MakeFabrics(fabric::FabricOptions()), EngineOptions())
      .release();
}

}  // namespace

Engine& EngineOf(reactor::Reactor& reactor) {
  static Engines* const engines = new Engines;
  absl::MutexLock lock(&engines->mutex);
  Engine*& engine = engines->of[&reactor];
  if (engine != nullptr) return *engine;
  if (reactor.InSeat()) {
    engine = Make(reactor);
    return *engine;
  }
  while (!reactor.TryEnter()) absl::SleepFor(absl::Microseconds(20));
  engine = Make(reactor);
  reactor.Leave();
  return *engine;
}

}  // namespace verbena::session
