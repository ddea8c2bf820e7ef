// A tick: poll, run what that woke, flush.
#include <sched.h>

#include "rpc/base/clock.h"
#include "rpc/base/slowdown.h"
#include "rpc/reactor/futex.h"
#include "rpc/reactor/impl.h"

namespace verbena::reactor {
namespace {

// Items of the inbox per tick, so that a flood of posts does not keep messages waiting.
constexpr int kInboxPerTick = 256;
// Idle for so long, polls pause in between (30-40 ns; 180 where CPUs are emulated): a peer that
// answers at once is seen at once, over tcp as well.
const int64_t kPauseAfterNs = int64_t{20'000} * kSlowdown;
// Polls between looks at where the peer runs.
constexpr uint32_t kPollsPerCpuLook = 16;
// Times to let a peer on the same CPU run (0.5-1 µs each, against ~6 µs for a sleep) before
// sleeping after all.
constexpr uint32_t kYieldsMax = 16;

}  // namespace

bool Reactor::Impl::Tick(bool own) {
  reactor.now_ns_ = Clock();
  bool active = !seat_queue.Empty() && DrainSeatQueue();
  for (size_t i = 0; i < pollers.size(); ++i) active |= pollers[i]->Poll(reactor.now_ns_);
  if (timers.Due(reactor.now_ns_)) active |= RunTimers();
  if (own && (user_first != nullptr || !inbox.Empty())) {
    RunUserCode();
    active = true;
  }
  FlushAll();
  return active;
}

bool Reactor::Impl::DrainSeatQueue() {
  bool any = false;
  while (Work* work = seat_queue.Pop()) {
    work->run(work);
    any = true;
  }
  return any;
}

void Reactor::Impl::DrainInbox() {
  for (int i = 0; i < kInboxPerTick; ++i) {
    Work* const work = inbox.Pop();
    if (work == nullptr) break;
    work->run(work);
  }
}

bool Reactor::Impl::RunTimers() {
  bool any = false;
  while (Timer* timer = timers.PopDue(reactor.now_ns_)) {
    timer->run(timer);
    any = true;
  }
  return any;
}

void Reactor::Impl::RunUserCode() {
  Work* work = user_first;
  // What this queues runs in the next tick, after polling.
  user_first = nullptr;
  user_end = &user_first;
  const bool lend = reactor.options_.thread;
  if (lend) {
    in_user_code = true;
    if (sleeper.load() == nullptr) {
      Lend();
    } else {
      Leave();
    }
  }
  if (!inbox.Empty()) DrainInbox();
  while (work != nullptr) {
    Work* const next = work->next;
    work->run(work);
    work = next;
  }
  if (lend) {
    in_user_code = false;
    TakeBack();
  }
}

bool Reactor::Impl::SpinStep(Spin& spin) {
  const int64_t idle_ns = reactor.now_ns_ - spin.since_ns;
  if (spin.idle++ % kPollsPerCpuLook == 0) {
    spin.peer_on_this_cpu = false;
    for (Poller* poller : pollers) spin.peer_on_this_cpu |= poller->PeerOnThisCpu();
  }
  if (spin.peer_on_this_cpu) {
    if (++spin.yields > kYieldsMax) return true;
    sched_yield();
  } else if (idle_ns > kPauseAfterNs) {
    CpuPause();
  }
  if (idle_ns < spin_ns) return false;
  if (spin_ns == 0) return true;
  for (const Poller* poller : pollers) {
    if (poller->expects_until_ns() - reactor.now_ns_ > 0) return false;
  }
  return true;
}

}  // namespace verbena::reactor
