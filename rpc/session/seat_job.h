#pragma once
// Runs a function in a reactor's seat, from any thread. Allocates: not for the message path.
#include <memory>
#include <utility>

#include "absl/functional/any_invocable.h"
#include "rpc/reactor/reactor.h"

namespace verbena::session {

// The function runs no user code. The reactor outlives it.
inline void RunInSeat(reactor::Reactor& reactor, absl::AnyInvocable<void() &&> function) {
  struct SeatJob : reactor::Work {
    explicit SeatJob(absl::AnyInvocable<void() &&> f)
        : Work([](Work* work) {
            const std::unique_ptr<SeatJob> job(static_cast<SeatJob*>(work));
            std::move(job->function)();
          }),
          function(std::move(f)) {}
    absl::AnyInvocable<void() &&> function;
  };
  reactor.PostSeat(*new SeatJob(std::move(function)));
}

}  // namespace verbena::session
