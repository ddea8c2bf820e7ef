// Leases whose lane breaks while they are being made: they are refused when nothing of them can be
// read any more, and not before, since their owner may then free the memory.
#include <dlfcn.h>

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink{1};

// Holds those who come through it, until they are let through one by one or it opens for all.
class Gate {
 public:
  void Pass() {
    std::unique_lock lock(mutex_);
    if (open_) return;
    ++waiting_;
    changed_.wait(lock, [this] { return open_ || let_ > 0; });
    --waiting_;
    if (!open_) --let_;
  }
  void Close() {
    const std::lock_guard lock(mutex_);
    open_ = false;
  }
  void LetOne() {
    const std::lock_guard lock(mutex_);
    ++let_;
    changed_.notify_all();
  }
  void Open() {
    const std::lock_guard lock(mutex_);
    open_ = true;
    let_ = 0;
    changed_.notify_all();
  }
  int waiting() {
    const std::lock_guard lock(mutex_);
    return waiting_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool open_ = true;
  int let_ = 0;
  int waiting_ = 0;
};
Gate deregistrations, deallocations;

// A test that fails leaves nobody behind it.
struct Closed {
  explicit Closed(Gate& gate_in) : gate(gate_in) { gate.Close(); }
  ~Closed() { gate.Open(); }
  Gate& gate;
};

int (*dealloc_window)(ibv_mw*) = nullptr;
int HeldDealloc(ibv_mw* window) {
  deallocations.Pass();
  return dealloc_window(window);
}
void HoldWindows() {
  static std::once_flag once;
  std::call_once(once, [] {
    ibv_context_ops& ops = TestPort().device->context()->ops;
    dealloc_window = std::exchange(ops.dealloc_mw, HeldDealloc);
  });
}

// No answer while it is held, and then the refusal.
void RefusedAfter(Rig& rig, LeaseSlot slot, Gate& gate) {
  auto& answers = rig.server_events().leased[slot.word()];
  REQUIRE(rig.pair.Until([&] { return gate.waiting() > 0; }));
  rig.pair.Settle(std::chrono::milliseconds(100));
  REQUIRE(answers.empty());
  gate.Open();
  REQUIRE(rig.pair.Until([&] { return !answers.empty(); }));
  REQUIRE(answers.size() == 1);
  REQUIRE(answers[0].error == Error::kLaneDown);
  REQUIRE(rig.server_events().revoked[slot.word()] == 0);
}

TEST_CASE("a lease whose lane breaks is refused when its registration is undone",
          "[faults][leases]") {
  Rig rig(Rungs()[1]);
  rig.Open(kLink);
  const LeaseSlot before{1, 1}, slot{2, 1};
  rig.Lease(before, kLink, 4096);
  const Closed closed(deregistrations);
  // Occupies the setup thread, so that the lease is still being made when its lane breaks.
  rig.server().Release(before);
  rig.server().Lease(slot, kLink, OwnerLane(), rig.region, rig.region->base(), 8192);
  rig.server().BreakLane(kLink, OwnerLane());
  REQUIRE(rig.pair.Until([&] { return deregistrations.waiting() > 0; }));
  deregistrations.LetOne();
  REQUIRE(rig.pair.Until([&] { return rig.server_events().revoked[before.word()] == 1; }));
  RefusedAfter(rig, slot, deregistrations);
}

TEST_CASE("a lease whose lane breaks is refused when its window is gone", "[faults][leases]") {
  const contract::Subject& rung = Rungs()[0];
  if (!rung.skip.empty()) {
    WARN("skipped: " << rung.skip);
    return;
  }
  HoldWindows();
  Rig rig(rung);
  rig.Open(kLink);
  const LeaseSlot slot{2, 1};
  const Closed closed(deallocations);
  // No poll in between: its window is not bound yet, as far as its owner knows.
  rig.server().Lease(slot, kLink, OwnerLane(), rig.region, rig.region->base(), 8192);
  rig.server().BreakLane(kLink, OwnerLane());
  RefusedAfter(rig, slot, deallocations);
}

}  // namespace
}  // namespace verbena::fabric::verbs

// Before that of the library.
extern "C" int ibv_dereg_mr(ibv_mr* mr) {
  verbena::fabric::verbs::deregistrations.Pass();
  static const auto real = reinterpret_cast<int (*)(ibv_mr*)>(dlsym(RTLD_NEXT, "ibv_dereg_mr"));
  return real(mr);
}
