// The driver seat: who drives, who waits, and that nobody is forgotten.
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <mutex>
#include <thread>
#include <vector>

#include "rpc/base/fork.h"
#include "tests/catch.h"
#include "tests/reactor/fake_poller.h"

namespace verbena::reactor {
namespace {

using std::chrono::milliseconds;

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
constexpr int kCalls = 20'000;
#else
constexpr int kCalls = 100'000;
#endif

ReactorOptions Unpinned(absl::Duration spin = absl::Microseconds(50)) {
  ReactorOptions options;
  options.pin = false;
  options.spin = spin;
  return options;
}

// A server that answers in order: a thread that rings the poller for each request it gets.
class EchoPeer {
 public:
  explicit EchoPeer(FakePoller& poller) : poller_(poller), thread_([this] { Run(); }) {}
  ~EchoPeer() {
    stop_.store(true);
    thread_.join();
  }
  void Request() { requests_.fetch_add(1); }

 private:
  void Run() {
    uint64_t answered = 0;
    while (!stop_.load()) {
      if (answered == requests_.load()) {
        std::this_thread::yield();
        continue;
      }
      ++answered;
      poller_.Ring();
    }
  }
  FakePoller& poller_;
  std::atomic<uint64_t> requests_{0};
  std::atomic<bool> stop_{false};
  std::thread thread_;
};

// Calls answered in order, as one link's: the poller completes the oldest.
struct Calls {
  explicit Calls(Reactor& r, FakePoller& p) : reactor(r), peer(p) {
    p.on_message = [this] {
      // In the seat.
      std::atomic<uint32_t>* const done = open.at(first++);
      Finish(reactor, *done);
    };
  }
  // In the seat.
  void Start(std::atomic<uint32_t>& done) {
    open.push_back(&done);
    peer.Request();
  }
  Reactor& reactor;
  EchoPeer peer;
  std::vector<std::atomic<uint32_t>*> open;
  size_t first = 0;
};

struct StartWork : Work {
  StartWork(Calls& c, std::atomic<uint32_t>& d)
      : Work([](Work* work) {
          auto* start = static_cast<StartWork*>(work);
          start->calls.Start(start->done);
        }),
        calls(c),
        done(d) {}
  Calls& calls;
  std::atomic<uint32_t>& done;
};

void BlockingCall(Reactor& reactor, Calls& calls) {
  std::atomic<uint32_t> done{0};
  StartWork start(calls, done);
  if (reactor.TryEnter()) {
    calls.Start(done);
  } else {
    reactor.PostSeat(start);
  }
  reactor.DriveUntil(done);
}

}  // namespace

TEST_CASE("the seat has one holder; who holds it knows", "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned(absl::ZeroDuration())).value();
  while (!reactor->TryEnter()) std::this_thread::yield();
  CHECK(reactor->InSeat());
  bool other_entered = true, other_in_seat = true;
  std::thread([&] {
    other_entered = reactor->TryEnter();
    other_in_seat = reactor->InSeat();
  }).join();
  CHECK_FALSE(other_entered);
  CHECK_FALSE(other_in_seat);
  reactor->Leave();
  CHECK_FALSE(reactor->InSeat());
}

TEST_CASE("one caller's blocking calls end, each with its own answer", "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned()).value();
  FakePoller poller;
  Calls calls(*reactor, poller);
  reactor->AddPoller(poller);
  for (int i = 0; i < kCalls / 10; ++i) BlockingCall(*reactor, calls);
  CHECK(calls.first == static_cast<size_t>(kCalls / 10));
  reactor->RemovePoller(poller);
}

TEST_CASE("no wake-up is lost among many blocked callers", "[reactor][seat][stress]") {
  // spin 0: everybody sleeps at each chance, so that each hand-over between sleepers is tried. 50:
  // they mostly spin.
  for (absl::Duration spin :
       {absl::ZeroDuration(), absl::Microseconds(1), absl::Microseconds(50)}) {
    for (bool socket_like : {false, true}) {
      auto reactor = Reactor::Create(Unpinned(spin)).value();
      FakePoller poller;
      poller.always_rings = socket_like;
      Calls calls(*reactor, poller);
      reactor->AddPoller(poller);
      constexpr int kThreads = 6;
      std::vector<std::thread> threads;
      for (int t = 0; t < kThreads; ++t) {
        threads.emplace_back([&] {
          for (int i = 0; i < kCalls / 6 / kThreads; ++i) BlockingCall(*reactor, calls);
        });
      }
      for (std::thread& thread : threads) thread.join();
      CHECK(calls.first == static_cast<size_t>(kCalls / 6 / kThreads * kThreads));
      reactor->RemovePoller(poller);
    }
  }
}

TEST_CASE("work posted from many threads runs once each, on the reactor's thread",
          "[reactor][post]") {
  auto reactor = Reactor::Create(Unpinned(absl::Microseconds(1))).value();
  constexpr int kThreads = 4, kEach = 5'000;
  std::atomic<int> ran{0}, elsewhere{0};
  std::vector<std::thread> threads;
  std::vector<std::vector<std::unique_ptr<FunctionWork>>> works(kThreads);
  for (int t = 0; t < kThreads; ++t) {
    for (int i = 0; i < kEach; ++i) {
      works[t].push_back(std::make_unique<FunctionWork>([&] {
        if (Reactor::Current() != reactor.get()) elsewhere.fetch_add(1);
        ran.fetch_add(1);
      }));
    }
    threads.emplace_back([&, t] {
      for (auto& work : works[t]) reactor->Post(*work);
    });
  }
  for (std::thread& thread : threads) thread.join();
  for (int i = 0; i < 10'000 && ran.load() < kThreads * kEach; ++i)
    std::this_thread::sleep_for(milliseconds(1));
  CHECK(ran.load() == kThreads * kEach);
  CHECK(elsewhere.load() == 0);
}

TEST_CASE("user code that a driver finds runs on the reactor's own thread", "[reactor][seat]") {
  for (absl::Duration spin : {absl::ZeroDuration(), absl::Milliseconds(2)}) {
    auto reactor = Reactor::Create(Unpinned(spin)).value();
    FakePoller poller;
    EchoPeer peer(poller);
    std::atomic<uint32_t> done{0};
    std::thread::id ran_on;
    std::mutex held;  // what a caller may hold while it blocks
    FunctionWork callback([&] {
      std::lock_guard lock(held);
      ran_on = std::this_thread::get_id();
      Finish(*reactor, done);
    });
    std::atomic<uint32_t> answered{0};
    poller.on_message = [&] {
      reactor->RunSoon(callback);
      Finish(*reactor, answered);
    };
    reactor->AddPoller(poller);
    {
      // The caller holds a lock that the callback wants, while it drives.
      std::lock_guard lock(held);
      peer.Request();
      reactor->DriveUntil(answered);
    }
    reactor->DriveUntil(done);
    CHECK(ran_on != std::thread::id());
    CHECK(ran_on != std::this_thread::get_id());
    reactor->RemovePoller(poller);
  }
}

TEST_CASE("a driver gives the seat up for queued user code, then gets its answer",
          "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned(absl::Seconds(10))).value();
  // The caller drives and spins for seconds; nothing arrives.
  std::atomic<uint32_t> done{0};
  std::atomic<bool> posted_ran{false};
  FunctionWork work([&] {
    posted_ran.store(true);
    Finish(*reactor, done);
  });
  std::thread poster([&] {
    std::this_thread::sleep_for(milliseconds(20));
    reactor->Post(work);
  });
  reactor->DriveUntil(done);
  poster.join();
  CHECK(posted_ran.load());
}

TEST_CASE("a call started by PostSeat runs without the reactor's thread when the seat is free",
          "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned(absl::ZeroDuration())).value();
  while (!reactor->TryEnter()) std::this_thread::yield();
  reactor->Leave();
  std::thread::id ran_on;
  FunctionWork work([&] { ran_on = std::this_thread::get_id(); });
  std::this_thread::sleep_for(milliseconds(5));  // the thread sleeps
  reactor->PostSeat(work);
  CHECK(ran_on == std::this_thread::get_id());
}

TEST_CASE("the seat's holder runs what others post for the seat", "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned(absl::ZeroDuration())).value();
  while (!reactor->TryEnter()) std::this_thread::yield();
  bool ran = false;
  FunctionWork work([&] { ran = true; });
  std::thread([&] { reactor->PostSeat(work); }).join();
  CHECK_FALSE(ran);
  reactor->Leave();
  CHECK(ran);
}

TEST_CASE(
    "what user code starts leaves at the end of its tick, also after another thread was there",
    "[reactor][seat]") {
  auto reactor = Reactor::Create(Unpinned(absl::ZeroDuration())).value();
  FakePoller poller;
  reactor->AddPoller(poller);
  std::atomic<uint32_t> done{0};
  int started = 0;
  uint64_t flushes = 1;
  FunctionWork start([&] { ++started; });
  FunctionWork user([&] {
    // Takes the seat that this thread lends while it runs user code, and leaves it.
    std::thread([&] {
      while (!reactor->TryEnter()) std::this_thread::yield();
      reactor->Leave();
    }).join();
    const uint64_t before = poller.flushes.load();
    for (int i = 0; i < 8; ++i) reactor->PostSend(start);
    flushes = poller.flushes.load() - before;
    Finish(*reactor, done);
  });
  reactor->Post(user);
  reactor->WaitUntil(done);
  CHECK(started == 8);
  CHECK(flushes == 0);
  reactor->RemovePoller(poller);
}

TEST_CASE("a forked child can neither enter nor create a reactor", "[reactor][fork]") {
  auto reactor = Reactor::Create(Unpinned(absl::ZeroDuration())).value();
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = !reactor->TryEnter() && !Reactor::Create(Unpinned()).ok();
    reactor.reset();
    _exit(refused ? 0 : 1);
  }
  int status = -1;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
}

}  // namespace verbena::reactor
