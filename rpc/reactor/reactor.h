#pragma once
// reactor::Reactor: one polling loop per NUMA node. It works in ticks: poll, run what that woke,
// flush.
//
// *On the reactor* means holding its driver seat. The reactor's own thread holds it while it works;
// a thread that is blocked in Get() may take it meanwhile and drive the loop, but then only bytes
// are moved and calls completed: user code (handlers, callbacks, resumptions) is queued with
// RunSoon for the reactor's own thread, so it never runs under a stranger's locks or CUDA context.
//
// User code may block, on a lock that a caller in Get() holds for example: while the own thread
// runs it, the seat is lent to whoever wants to drive. What user code starts goes by PostSeat,
// which takes the seat back for that moment.
//
// The thread spins for `spin` after the last thing that happened, longer while a poller expects
// something soon, then arms every poller, polls
// once more and sleeps until a poller's fd, the inbox or a timer wakes it. It does not spin when a
// poller says that the peer runs on the same CPU: it yields some times and sleeps.
//
// In the child of a fork no reactor exists: Create fails, TryEnter is false, Post drops, DriveUntil
// ends the child.
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "rpc/reactor/work.h"

namespace verbena::reactor {

// Something to poll; the session engine of a reactor is the only kind so far. All methods in the
// driver seat.
class Poller {
 public:
  // Whether anything happened or is left to do.
  virtual bool Poll(int64_t now_ns) = 0;
  // End of a tick: what was queued for peers goes out.
  virtual void Flush() = 0;
  // Whether Poll has something to do that nothing will ring for: what was queued by calls from
  // outside a poll.
  virtual bool HasLater() const = 0;
  // See fabric::Fabric.
  virtual bool Arm() = 0;
  virtual void Disarm() = 0;
  virtual int fd() const = 0;
  virtual bool PeerOnThisCpu() const = 0;
  // Until when a peer is likely to do something without our doing: sleeping before would cost more
  // than spinning. 0 = nothing is known.
  virtual int64_t expects_until_ns() const = 0;
  // Whether somebody may wait for what a peer sends next: calls, READs, peers that call us. If not,
  // a caller may leave without having the reactor's thread wait for it.
  virtual bool Awaits() const { return true; }

 protected:
  ~Poller() = default;
};

// A timer: intrusive like Work. Cancel before destroying it while it is armed.
struct Timer {
  using Run = void (*)(Timer*);
  explicit Timer(Run r) : run(r) {}
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

  Run run;
  int64_t due_ns = 0;
  uint32_t heap_index = ~0u;  // where the reactor keeps it; ~0 = not armed
};

struct ReactorOptions {
  std::string name = "verbena-0";
  int numa_node = 0;
  bool pin = true;  // to the CPUs of the node, or to `cpu`
  int cpu = -1;     // one CPU; -1 = all of the node's
  absl::Duration spin = absl::Microseconds(50);
  absl::Duration stall_report =
      absl::Milliseconds(50);  // a handler that holds the reactor longer is reported by name
  bool thread = true;          // false: no thread; a test drives it with Tick()
  std::function<int64_t()>
      clock;  // for tests, with thread = false: what now_ns() says; empty = NowNs()
};

class Reactor {
 public:
  // FAILED_PRECONDITION: in the child of a fork. RESOURCE_EXHAUSTED: no descriptors left, with the
  // system's reason.
  static absl::StatusOr<std::unique_ptr<Reactor>> Create(const ReactorOptions& options);
  // Stops the thread after the current tick. What is queued does not run. Any thread but its own.
  // In the child of a fork: frees nothing.
  ~Reactor();
  Reactor(const Reactor&) = delete;
  Reactor& operator=(const Reactor&) = delete;

  // The reactor whose own thread this is, or null. Get() is refused there.
  static Reactor* Current();

  // ---- Any thread.
  // Queues user code for the reactor's own thread; wakes it if it sleeps. Never blocks, never runs
  // inline. It runs without the seat, see below.
  void Post(Work& work);
  // Queues work of the library itself, which runs no user code, for whoever holds the seat next;
  // runs it in this call when the seat is free. For what a caller starts when TryEnter failed: far
  // cheaper than Post when callers drive.
  void PostSeat(Work& work);
  // The same for work that at most sends and queues, and starts nothing that a poller would have to
  // be armed for again: then the pollers stay armed as they are, which halves its cost.
  void PostSend(Work& work);
  // Takes the seat if nobody has it. Pair with Leave(). Disarms the pollers.
  bool TryEnter();
  // Gives the seat up: flushes, arms, polls once more, and makes sure that somebody drives if there
  // is something to drive (queued user code, other blocked callers).
  void Leave();
  // Blocks until `done` becomes non-zero (set in the seat, with Wake() after it when set by another
  // thread than the waiter). Drives the loop meanwhile when the seat is free: spins for `spin`,
  // then sleeps on the pollers' descriptors. May be called in the seat, which it then has left when
  // it returns: TryEnter, start a call, DriveUntil is the cheapest blocking call. Not on a reactor
  // thread: checked.
  void DriveUntil(const std::atomic<uint32_t>& done);
  // Blocks likewise, but leaves the driving to the reactor's own thread: for what that thread's
  // user code will set, which two drivers on one CPU would only hold up.
  void WaitUntil(const std::atomic<uint32_t>& done);
  // What this thread has started will not be waited for in DriveUntil: from now on the reactor's
  // own thread looks after it. Else that may be some milliseconds late. A load where it does
  // already.
  void Attend();
  // Tells threads that wait for it that `done` was set, by a sequentially consistent store. In the
  // seat, or user code of the own thread.
  void Wake(const std::atomic<uint32_t>& done);
  bool InSeat() const;  // this thread holds the seat; 2 ns

  // ---- In the seat.
  // Queues user code for the reactor's own thread: at the end of this poll if this is that thread,
  // else it is woken. From user code like Post.
  void RunSoon(Work& work);
  // `due_ns` on the clock of now_ns(). Arming an armed timer moves it.
  void Arm(Timer& timer, int64_t due_ns);
  void Cancel(Timer& timer);
  // The tick's clock: steady, read once per tick before deadlines are checked. Any thread may call
  // NowNs() below instead.
  int64_t now_ns() const { return now_ns_; }
  // Any thread but another reactor's; waits for the seat where this thread does not hold it. The
  // poller must be removed before it dies; its fd() must not change.
  void AddPoller(Poller& poller);
  void RemovePoller(Poller& poller);
  // For the stall report: what user code runs now; null when it ended. `method` is never freed
  // (a literal, or MethodPath's data).
  void BeginUserCode(const char* method);
  void EndUserCode();

  const ReactorOptions& options() const { return options_; }
  uint32_t index() const { return index_; }

  // One tick by hand, for reactors without a thread. Returns whether anything happened.
  bool Tick();

  static int64_t NowNs();  // steady clock

 private:
  explicit Reactor(const ReactorOptions& options);
  // Whether there is anything to wait for. Aborts where this thread must not block.
  bool MayBlock(const std::atomic<uint32_t>& done) const;
  struct Impl;
  ReactorOptions options_;
  uint32_t index_ = 0;
  int64_t now_ns_ = 0;
  std::unique_ptr<Impl> impl_;
};

}  // namespace verbena::reactor
