// Sleeping: an idle process uses no CPU, and what happens wakes it.
#include <sys/resource.h>

#include <chrono>
#include <thread>

#include "tests/catch.h"
#include "tests/reactor/fake_poller.h"

namespace verbena::reactor {
namespace {

using std::chrono::milliseconds;

double CpuMilliseconds() {
  rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  const auto ms = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) * 1e3 + static_cast<double>(t.tv_usec) / 1e3;
  };
  return ms(usage.ru_utime) + ms(usage.ru_stime);
}

ReactorOptions Unpinned() {
  ReactorOptions options;
  options.pin = false;
  return options;
}

}  // namespace

TEST_CASE("an idle reactor uses no CPU once it has spun out", "[reactor][sleep]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  reactor->AddPoller(poller);
  std::this_thread::sleep_for(milliseconds(150));  // spins out; the last stall check passes
  const uint64_t polls = poller.polls.load();
  const double before_ms = CpuMilliseconds();
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(CpuMilliseconds() - before_ms < 10);  // of 200
  CHECK(poller.polls.load() == polls);
  reactor->RemovePoller(poller);
}

TEST_CASE("a caller blocked for long sleeps too, and its answer wakes it", "[reactor][sleep]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  std::atomic<uint32_t> done{0};
  std::thread::id answered_on;
  poller.on_message = [&] {
    answered_on = std::this_thread::get_id();
    Finish(*reactor, done);
  };
  reactor->AddPoller(poller);
  std::this_thread::sleep_for(milliseconds(100));
  double used_ms = 1e9;
  std::thread peer([&] {
    std::this_thread::sleep_for(milliseconds(20));
    const double before_ms = CpuMilliseconds();
    std::this_thread::sleep_for(milliseconds(200));
    used_ms = CpuMilliseconds() - before_ms;
    poller.Ring();
  });
  reactor->DriveUntil(done);
  peer.join();
  CHECK(used_ms < 10);
  // The caller sleeps on the descriptors itself: no hand-over by the reactor's thread.
  CHECK(answered_on == std::this_thread::get_id());
  reactor->RemovePoller(poller);
}

TEST_CASE("several callers blocked for long all get their answers", "[reactor][sleep]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  constexpr int kCallers = 4;
  std::atomic<uint32_t> done[kCallers] = {};
  int next = 0;
  poller.on_message = [&] { Finish(*reactor, done[next++]); };
  reactor->AddPoller(poller);
  std::vector<std::thread> callers;
  for (int i = 0; i < kCallers; ++i) callers.emplace_back([&, i] { reactor->DriveUntil(done[i]); });
  for (int i = 0; i < kCallers; ++i) {
    std::this_thread::sleep_for(milliseconds(5));
    poller.Ring();
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(next == kCallers);
  reactor->RemovePoller(poller);
}

TEST_CASE("the reactor's thread serves what arrives when no caller is there", "[reactor][sleep]") {
  for (bool socket_like : {false, true}) {
    auto reactor = Reactor::Create(Unpinned()).value();
    FakePoller poller;
    poller.always_rings = socket_like;
    std::atomic<int> served{0};
    poller.on_message = [&] { served.fetch_add(1); };
    reactor->AddPoller(poller);
    for (int i = 1; i <= 20; ++i) {
      if (i % 2 == 0) std::this_thread::sleep_for(milliseconds(2));
      // Callers come and go between arrivals, and leave the thread in charge.
      if (i % 3 == 0 && reactor->TryEnter()) reactor->Leave();
      poller.Ring();
      for (int w = 0; w < 5'000 && served.load() < i; ++w)
        std::this_thread::sleep_for(milliseconds(1));
      REQUIRE(served.load() == i);
    }
    reactor->RemovePoller(poller);
  }
}

TEST_CASE("a reactor whose peer is on the same CPU does not spin", "[reactor][sleep]") {
  ReactorOptions options = Unpinned();
  options.spin = absl::Seconds(10);
  auto reactor = Reactor::Create(options).value();
  FakePoller poller;
  poller.peer_on_this_cpu = true;
  reactor->AddPoller(poller);
  std::this_thread::sleep_for(milliseconds(150));
  const uint64_t polls = poller.polls.load();
  std::this_thread::sleep_for(milliseconds(50));
  CHECK(poller.polls.load() == polls);
  reactor->RemovePoller(poller);
}

TEST_CASE("a reactor spins on while a poller expects something, and then sleeps",
          "[reactor][sleep]") {
  ReactorOptions options = Unpinned();
  options.spin = absl::Microseconds(1);
  auto reactor = Reactor::Create(options).value();
  FakePoller poller;
  poller.ExpectUntil(Reactor::NowNs() + 60'000'000'000);
  reactor->AddPoller(poller);
  FunctionWork wake([] {});
  reactor->Post(wake);  // it may have slept by now
  std::this_thread::sleep_for(milliseconds(20));
  const uint64_t polls = poller.polls.load();
  while (poller.polls.load() < polls + 1000) std::this_thread::sleep_for(milliseconds(1));
  // It expects nothing any more.
  poller.ExpectUntil(0);
  uint64_t before = 0;
  do {
    before = poller.polls.load();
    std::this_thread::sleep_for(milliseconds(20));
  } while (poller.polls.load() != before);
  reactor->RemovePoller(poller);
}

TEST_CASE("work that a caller starts and leaves behind is done by the reactor's thread",
          "[reactor][sleep]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  std::atomic<uint32_t> done{0};
  poller.on_worked = [&] { Finish(*reactor, done); };
  reactor->AddPoller(poller);
  const auto start = [&](uint64_t polls) {
    done.store(0);
    std::atomic<bool> begun{false};
    FunctionWork begin([&] {
      poller.Work(polls);
      begun.store(true);
    });
    std::this_thread::sleep_for(milliseconds(5));  // the thread sleeps
    reactor->PostSeat(begin);
    while (!begun.load()) std::this_thread::yield();  // mostly it has run in PostSeat
  };
  // A little: mostly over when PostSeat returns.
  start(3);
  while (done.load() == 0) std::this_thread::yield();
  // A lot, and nobody waits.
  start(200'000);
  while (done.load() == 0) std::this_thread::sleep_for(milliseconds(1));
  // Often: the thread may wake before the caller has left.
  for (int i = 0; i < 100; ++i) {
    start(20'000);
    for (int wait = 0; wait < 5000 && done.load() == 0; ++wait) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    REQUIRE(done.load() == 1);
  }
  // A lot, and somebody waits at once or later: whoever does it, it ends.
  for (int i = 0; i < 20; ++i) {
    start(1'000 << (i % 10));
    if (i % 3 == 0) std::this_thread::sleep_for(std::chrono::microseconds(30 * i));
    reactor->DriveUntil(done);
    CHECK(done.load() == 1);
  }
  reactor->RemovePoller(poller);
}

// A copy of a device's, for instance, takes milliseconds, and who waits for it is awake already.
TEST_CASE("a caller whose transfer is under way drives again after a timer of the reactor's thread",
          "[reactor][sleep]") {
  constexpr int kPollsEnough = 1000;
  constexpr int kPollsMax = 20'000'000;
  auto reactor = Reactor::Create(Unpinned()).value();
  const std::thread::id caller = std::this_thread::get_id();
  FakePoller poller;
  std::atomic<uint32_t> done{0};
  bool timer_ran = false;
  int by_caller = 0, by_thread = 0;  // polls after the timer; in the seat, as all of these
  poller.on_poll = [&] {
    if (!timer_ran || done.load() != 0) return;
    ++(std::this_thread::get_id() == caller ? by_caller : by_thread);
    if (by_caller < kPollsEnough && by_thread < kPollsMax) return;
    poller.under_way.store(false);
    Finish(*reactor, done);
  };
  reactor->AddPoller(poller);
  FunctionTimer timer([&] { timer_ran = true; });
  while (!reactor->TryEnter()) std::this_thread::yield();
  reactor->Arm(timer, reactor->now_ns() + 10'000'000);
  reactor->Leave();  // which sets the kernel's timer
  poller.under_way.store(true);
  reactor->DriveUntil(done);
  CHECK(by_caller >= kPollsEnough);
  reactor->RemovePoller(poller);
}

TEST_CASE("what nobody expects is noticed after many blocking calls over a descriptor that rings",
          "[reactor][sleep]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  poller.always_rings = true;
  std::atomic<uint32_t> done{0};
  poller.on_message = [&] { Finish(*reactor, done); };
  reactor->AddPoller(poller);
  for (int round = 0; round < 20; ++round) {
    for (int i = 0; i < 50 * round; ++i) {
      done.store(0);
      FunctionWork begin([&] { poller.Ring(); });
      reactor->PostSeat(begin);
      reactor->DriveUntil(done);
    }
    // The calls stop, and something comes: at once, or when the thread has long been asleep.
    if (round % 2 == 1) std::this_thread::sleep_for(milliseconds(5));
    done.store(0);
    poller.Ring();
    for (int i = 0; i < 5000 && done.load() == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    REQUIRE(done.load() == 1);
  }
  // And then nothing keeps the thread awake.
  std::this_thread::sleep_for(milliseconds(50));
  const double before_ms = CpuMilliseconds();
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(CpuMilliseconds() - before_ms < 10);
  reactor->RemovePoller(poller);
}

// Blocking calls one after the other, as over a socket: each starts by PostSend, is driven, ends.
struct Calls {
  explicit Calls(bool always_rings = true) {
    poller.always_rings = always_rings;
    poller.on_message = [this] { Finish(*reactor, done); };
    reactor->AddPoller(poller);
  }
  ~Calls() { reactor->RemovePoller(poller); }
  void Call() {
    done.store(0);
    FunctionWork begin([this] { poller.Ring(); });
    reactor->PostSend(begin);
    reactor->DriveUntil(done);
  }
  bool ComesWithin(int limit_ms) {
    for (int i = 0; i < limit_ms && done.load() == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return done.load() != 0;
  }
  std::unique_ptr<Reactor> reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  std::atomic<uint32_t> done{0};
};

TEST_CASE("callers who come again and again leave nothing armed where nobody else waits",
          "[reactor][sleep]") {
  // As over a socket, which wakes the thread by itself, and as over memory, which does not.
  Calls calls(GENERATE(true, false));
  calls.poller.awaits = false;
  // Arms in 100 calls. The thread may end its doze in between, or be awake and take its turn.
  uint64_t least = ~uint64_t{0};
  for (int round = 0; round < 20'000 && least > 20; ++round) {
    if (round % 16 == 15) std::this_thread::sleep_for(milliseconds(10));
    const uint64_t before = calls.poller.arms.load();
    for (int i = 0; i < 100; ++i) calls.Call();
    least = std::min(least, calls.poller.arms.load() - before);
  }
  CHECK(least <= 20);
  // What nobody expects is noticed all the same, and then nothing keeps the thread awake.
  calls.done.store(0);
  calls.poller.Ring();
  REQUIRE(calls.ComesWithin(5000));
  std::this_thread::sleep_for(milliseconds(50));
  const double before_ms = CpuMilliseconds();
  std::this_thread::sleep_for(milliseconds(200));
  CHECK(CpuMilliseconds() - before_ms < 10);
}

TEST_CASE("who attends has the reactor's thread look at once", "[reactor][sleep]") {
  Calls calls;
  calls.poller.awaits = false;
  int armed = 0;
  for (int round = 0; round < 50; ++round) {
    for (int i = 0; i < 20 * round; ++i) calls.Call();
    calls.done.store(0);
    FunctionWork begin([&] { calls.poller.awaits = true; });  // a call that nobody drives
    calls.reactor->PostSend(begin);
    calls.reactor->Attend();
    armed += calls.poller.armed() ? 1 : 0;  // else the thread is awake just now
    calls.poller.Ring();
    REQUIRE(calls.ComesWithin(5000));
    calls.poller.awaits = false;
  }
  CHECK(armed >= 25);
}

TEST_CASE("callers of several threads end, whoever leaves lazily", "[reactor][sleep]") {
  Calls calls;
  calls.poller.awaits = false;
  std::atomic<uint32_t>* waiting[4] = {};
  int first = 0, last = 0;  // in the seat
  calls.poller.on_message = [&] {
    if (first < last) Finish(*calls.reactor, *waiting[first++ % 4]);
  };
  std::vector<std::thread> callers;
  for (int t = 0; t < 4; ++t) {
    callers.emplace_back([&] {
      for (int i = 0; i < 2000; ++i) {
        std::atomic<uint32_t> done{0};
        FunctionWork begin([&] {
          waiting[last++ % 4] = &done;
          calls.poller.Ring();
        });
        calls.reactor->PostSend(begin);
        calls.reactor->DriveUntil(done);
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(first == 4 * 2000);
}

// A caller that sleeps until its answer comes.
struct SleepingCaller {
  SleepingCaller() {
    poller.on_message = [this] { Finish(*reactor, done); };
    reactor->AddPoller(poller);
  }
  ~SleepingCaller() {
    thread.join();
    reactor->RemovePoller(poller);
  }
  void Start() {
    thread = std::thread([this] { reactor->DriveUntil(done); });
  }
  // It armed the pollers last, to sleep.
  void AwaitSleep() const {
    while (!poller.armed()) std::this_thread::sleep_for(milliseconds(1));
    std::this_thread::sleep_for(milliseconds(20));
  }
  // In user code: the answer comes now. Whether the caller has it while this code still runs.
  bool Answered() {
    poller.Ring();
    for (int i = 0; i < 5'000 && done.load() == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    return done.load() != 0;
  }
  std::unique_ptr<Reactor> reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  std::atomic<uint32_t> done{0};
  std::thread thread;
};

TEST_CASE("a caller that sleeps has its answer while user code runs on", "[reactor][sleep]") {
  SleepingCaller caller;
  // Something is under way, or not, for which the caller would have to be awake.
  const bool later = GENERATE(false, true);
  caller.Start();
  caller.AwaitSleep();
  std::atomic<int> answered{-1};
  FunctionWork work([&] {
    caller.poller.under_way = later;
    const bool in_time = caller.Answered();
    caller.poller.under_way = false;
    answered = in_time ? 1 : 0;  // last: the test ends
  });
  caller.reactor->Post(work);
  while (answered.load() < 0) std::this_thread::sleep_for(milliseconds(1));
  CHECK(answered.load() == 1);
}

TEST_CASE("a caller that sleeps has its answer after user code came to the seat and left it",
          "[reactor][sleep]") {
  SleepingCaller caller;
  const bool later = GENERATE(false, true);
  std::atomic<bool> running{false};
  std::atomic<int> answered{-1};
  FunctionWork work([&] {
    running = true;
    caller.AwaitSleep();
    while (!caller.reactor->TryEnter()) std::this_thread::yield();
    caller.poller.under_way = later;
    caller.reactor->Leave();
    const bool in_time = caller.Answered();
    caller.poller.under_way = false;
    answered = in_time ? 1 : 0;  // last: the test ends
  });
  caller.reactor->Post(work);
  while (!running) std::this_thread::sleep_for(milliseconds(1));
  caller.Start();
  while (answered.load() < 0) std::this_thread::sleep_for(milliseconds(1));
  CHECK(answered.load() == 1);
}

TEST_CASE("a caller that sleeps has its answer though another left work behind while user code ran",
          "[reactor][sleep]") {
  SleepingCaller caller;
  caller.Start();
  caller.AwaitSleep();
  std::atomic<int> answered{-1};
  FunctionWork work([&] {
    std::thread other([&] {
      while (!caller.reactor->TryEnter()) std::this_thread::yield();
      caller.poller.under_way = true;
      caller.reactor->Leave();
    });
    other.join();
    const bool in_time = caller.Answered();
    caller.poller.under_way = false;
    answered = in_time ? 1 : 0;  // last: the test ends
  });
  caller.reactor->Post(work);
  while (answered.load() < 0) std::this_thread::sleep_for(milliseconds(1));
  CHECK(answered.load() == 1);
}

TEST_CASE("a caller that sleeps has its deadline while user code runs on", "[reactor][sleep]") {
  SleepingCaller caller;
  FunctionTimer deadline([&] { Finish(*caller.reactor, caller.done); });
  while (!caller.reactor->TryEnter()) std::this_thread::yield();
  caller.reactor->Arm(deadline, caller.reactor->now_ns() + 100'000'000);
  caller.reactor->Leave();
  caller.Start();
  caller.AwaitSleep();
  std::atomic<int> ended{-1};
  FunctionWork work([&] {
    for (int i = 0; i < 5'000 && caller.done.load() == 0; ++i) {
      std::this_thread::sleep_for(milliseconds(1));
    }
    ended = caller.done.load() != 0 ? 1 : 0;  // last: the test ends
  });
  caller.reactor->Post(work);
  while (ended.load() < 0) std::this_thread::sleep_for(milliseconds(1));
  CHECK(ended.load() == 1);
}

}  // namespace verbena::reactor
