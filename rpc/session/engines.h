#pragma once
// The process's engines: one per reactor, with every fabric that this process has. Made at first
// use, never destroyed.
#include "rpc/reactor/reactor.h"
#include "rpc/session/engine.h"

namespace verbena::session {

// Any thread; waits for a tick of that reactor when it makes the engine.
Engine& EngineOf(reactor::Reactor& reactor);

}  // namespace verbena::session
