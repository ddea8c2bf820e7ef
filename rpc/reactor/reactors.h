#pragma once
// The process's reactors: one per NUMA node unless InitRuntime said otherwise. Made at first use,
// never destroyed.
#include "absl/types/span.h"
#include "rpc/reactor/reactor.h"

namespace verbena::reactor {

// Any thread. A process that cannot start a thread ends with the reason.
absl::Span<Reactor* const> Reactors();
Reactor& DefaultReactor();
// For new channels: the reactors in turn; on a reactor thread its own.
Reactor& NextReactor();

}  // namespace verbena::reactor
