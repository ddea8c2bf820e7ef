#pragma once
// The inside of a Reactor. Who may touch what is said per group of members.
//
// Nothing is lost because of three pairs of checks, each a sequentially consistent write followed
// by a read of the other's:
//   seat released, then seat_queue looked at   | pushed to seat_queue, then the seat looked at
//   thread_asleep set, then inbox, needed and  | pushed to inbox or set needed or drive_wanted,
//   drive_wanted looked at                     | then thread_asleep looked at
//   done set, then waiting looked at           | waiting counted, then done looked at
// and because whoever releases the seat leaves the pollers armed and their descriptors watched: by
// the reactor's thread in epoll, or by one caller (the sleeper) in poll. Or that thread dozes, and
// nobody waits. Or it has lent the seat, and no caller sleeps in poll.
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc/base/clock.h"
#include "rpc/base/mpsc_queue.h"
#include "rpc/reactor/reactor.h"
#include "rpc/reactor/stall.h"
#include "rpc/reactor/timer_heap.h"

namespace verbena::reactor {

// What this thread waits for in DriveUntil; null = nothing.
extern constinit thread_local const std::atomic<uint32_t>* tls_driving;
// The reactor whose own thread this is.
extern constinit thread_local Reactor* tls_current;
// Its address is what `seat` holds while this thread has it.
extern constinit thread_local char tls_token;
inline const void* ThreadToken() { return &tls_token; }
// What it holds while the own thread runs user code.
inline constexpr char kLentToken = 0;
inline const void* const lent_seat = &kLentToken;

// A thread in DriveUntil that waits for its `done` without driving.
struct Waiter {
  enum State : uint32_t { kRunning, kParked, kPolling, kNotified };
  explicit Waiter(const std::atomic<uint32_t>& d) : done(&d) {}
  const std::atomic<uint32_t>* done;
  std::atomic<uint32_t> state{kRunning};
  int event_fd = -1;  // wakes it from kPolling
  Waiter* next = nullptr;
  Waiter** link = nullptr;  // what points to it in its bucket
};

// Waiters by the address of their `done`.
class WaiterTable {
 public:
  // From now on Notify reaches it. The caller then looks at `done` once more before it sleeps.
  void Add(Waiter& waiter);
  void Remove(Waiter& waiter);
  // After `done` was set, sequentially consistent like all accesses of both. Some ns when nobody
  // waits.
  void Notify(const std::atomic<uint32_t>& done);
  // Wakes the one that sleeps on descriptors, though its `done` is not set: there is to drive.
  void WakePolling();
  // Whether anybody waits.
  bool any() const { return count_.load() != 0; }

 private:
  static void WakeLocked(Waiter& waiter);
  struct alignas(64) Bucket {
    std::atomic<uint32_t> waiting{0};
    std::mutex mutex;
    Waiter* first = nullptr;
  };
  Bucket& BucketOf(const std::atomic<uint32_t>* done) {
    return buckets_[(reinterpret_cast<uintptr_t>(done) >> 6) % buckets_.size()];
  }
  std::array<Bucket, 64> buckets_;
  std::atomic<uint32_t> count_{0};
};

// How long a thread has polled in vain.
struct Spin {
  int64_t since_ns = 0;
  uint32_t idle = 0;
  uint32_t yields = 0;
  bool peer_on_this_cpu = false;
  void Restart(int64_t now_ns) { *this = Spin{.since_ns = now_ns}; }
};

struct Reactor::Impl {
  explicit Impl(Reactor& r);
  ~Impl();
  absl::Status Open();  // descriptors

  // ---- seat.cc
  // The seat alone.
  bool TryTake() {
    const void* holder = seat.load(std::memory_order_relaxed);
    if (holder != nullptr && holder != lent_seat) return false;
    if (thread_wants.load(std::memory_order_relaxed) != kNo && tls_current != &reactor)
      return false;
    return seat.compare_exchange_strong(holder, ThreadToken());
  }
  // The own thread runs user code, which may block on anything, even on a lock that a caller in
  // Get() holds: others may take the seat meanwhile. Nobody else is told, so it costs a store.
  void Lend() { seat.store(lent_seat, std::memory_order_release); }
  // The own thread, when nobody has taken what it lent.
  bool Reclaim() {
    const void* expected = lent_seat;
    return seat.compare_exchange_strong(expected, ThreadToken(), std::memory_order_acquire);
  }
  void TakeBack();  // waits for whoever took it
  void Entered();   // what a thread does that has just taken it
  bool TryEnter();
  void Leave();
  void FinishLater();
  bool HasLater() const;
  // From user code of the own thread, when nobody has the seat that it lent. False: not so.
  bool RunFromUserCode(Work& work);
  void QueueForSeat(Work& work);
  // In the seat, which it leaves: runs `first`, if not null, and what is queued. What only sends
  // leaves the pollers armed: whoever waits for an answer disarms them when it drives.
  void WorkInSeat(Work* first);
  // `lazily`: without anything armed; the dozing own thread will look.
  void ReleaseSeat(bool lazily = false);
  // In the seat. Whether the own thread dozes, and nobody but this caller may wait for a peer.
  bool Dozes() const;
  // And nothing is left to do.
  bool MayLeaveLazily() const { return Dozes() && !HasLater(); }
  void CountLeave();
  bool Awaits() const;
  // Arms all pollers. False: something is left to do, and they are disarmed again.
  bool ArmAll();
  void DisarmAll();
  void FlushAll();
  void SetTimer();  // the kernel's, before the seat is released
  void WatchOn();
  void WatchOff();

  // ---- tick.cc
  // Poll, run what that woke, flush. `own`: on the reactor's own thread, so inbox and user code
  // too.
  bool Tick(bool own);
  bool DrainSeatQueue();
  void DrainInbox();
  bool RunTimers();
  void RunUserCode();
  // After a tick without events. True: stop spinning and sleep.
  bool SpinStep(Spin& spin);
  int64_t Clock() const { return reactor.options_.clock ? reactor.options_.clock() : SteadyNs(); }

  // ---- drive.cc
  // kDone, kLostSeat, kIdle: this thread has left the seat; kIdle: and somebody else sleeps on the
  // descriptors.
  enum class Drove { kDone, kLostSeat, kIdle, kDriveOn };
  Drove Drive(const std::atomic<uint32_t>& done);
  Drove SleepDriving(const std::atomic<uint32_t>& done);
  int PollTimeoutMs() const;
  bool SpinAsHeir(const std::atomic<uint32_t>& done);
  void Park(const std::atomic<uint32_t>& done);

  // ---- thread.cc
  void ThreadMain();
  void Pin();
  void TakeForThread();
  bool WorkUntilIdle(bool spin);  // false: stop
  bool TryFallAsleep();
  struct Woke {
    bool rang = false, timer = false;
  };
  Woke SleepOnce(int timeout_ms);
  bool SleepUntilNeeded();  // whether to spin afterwards; with the seat
  void WakeThread();
  void YieldToCaller();
  void OnStrayWake();
  bool ThreadHasWork() const;

  Reactor& reactor;

  // The seat: the token of the thread that holds it, null = free, lent_seat = the own thread's, but
  // for whoever wants it.
  alignas(64) std::atomic<const void*> seat{nullptr};
  enum Wants : uint32_t { kNo, kWants, kParked };
  std::atomic<uint32_t> thread_wants{
      kNo};  // the own thread waits for the seat: nobody else takes it
  std::atomic<bool> heir{
      false};  // one caller spins until the own thread idles and gives the seat up

  // Any thread.
  MpscQueue<Work> seat_queue;
  // Work was posted that needs the pollers armed again. Set before it is pushed.
  std::atomic<bool> rearm{false};
  MpscQueue<Work> inbox;
  std::atomic<bool> thread_asleep{false};
  std::atomic<bool> needed{false};  // the own thread shall take the seat: user code is queued
  // Set in the seat by who leaves it unarmed, unset by who takes it next: the own thread, unless a
  // caller is quicker.
  std::atomic<bool> drive_wanted{false};
  std::atomic<bool> stop{false};
  WaiterTable waiters;
  // The own thread has been woken by what a caller drives, and looks now and then whether callers
  // still come (entries counts). While they do, those who wait for nothing else leave pollers
  // unarmed and descriptors unwatched: two system calls less per blocking call.
  std::atomic<bool> dozing{false};
  std::atomic<bool> doze_asked{false};
  std::atomic<uint32_t> entries{0};       // written in the seat
  std::atomic<bool> attend{false};        // somebody counts on the own thread, see Attend
  std::atomic<Waiter*> sleeper{nullptr};  // the caller that sleeps on the pollers' descriptors

  // In the seat.
  alignas(64) bool armed = false;
  std::vector<Poller*> pollers;
  TimerHeap timers;
  int64_t timer_set_ns = 0;  // what the kernel's timer is set to; 0 = not
  Work* user_first = nullptr;
  Work** user_end = &user_first;
  int64_t spin_ns = 0;
  int64_t left_ns = 0;  // when a caller left last with the pollers armed
  uint32_t leaves = 0;  // such, shortly after one another

  bool in_user_code = false;  // the own thread's alone

  // The pollers' descriptors in the thread's epoll: one-shot, so that a driver's events wake the
  // thread once at most.
  std::mutex watch_mutex;
  std::vector<int> watched;           // under watch_mutex
  std::atomic<bool> watch_on{false};  // written under watch_mutex
  // Entries by callers that still switch the watch off, because events ring although nobody armed
  // (tcp); how many the last stray wake-up granted; entries since they were used up.
  std::atomic<uint32_t> noisy{0};
  std::atomic<uint32_t> noisy_granted{0};
  std::atomic<uint32_t> quiet_entries{0};

  int epoll_fd = -1;
  int wake_fd = -1;
  int timer_fd = -1;
  std::shared_ptr<StallWatch> stall;
  std::thread thread;
};

}  // namespace verbena::reactor
