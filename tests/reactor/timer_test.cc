#include <chrono>
#include <memory>
#include <random>
#include <thread>

#include "rpc/reactor/timer_heap.h"
#include "tests/catch.h"
#include "tests/reactor/fake_poller.h"

namespace verbena::reactor {
namespace {

ReactorOptions Virtual(const int64_t* now_ns) {
  ReactorOptions options;
  options.thread = false;
  options.clock = [now_ns] { return *now_ns; };
  return options;
}

void InSeat(Reactor& reactor, const std::function<void()>& f) {
  REQUIRE(reactor.TryEnter());
  f();
  reactor.Leave();
}

}  // namespace

TEST_CASE("timers run when due, in order, and not when cancelled", "[reactor][timer]") {
  int64_t now_ns = 1'000;
  auto reactor = Reactor::Create(Virtual(&now_ns)).value();
  std::vector<int> ran;
  FunctionTimer a([&] { ran.push_back(1); }), b([&] { ran.push_back(2); }),
      c([&] { ran.push_back(3); });
  InSeat(*reactor, [&] {
    reactor->Arm(c, 1'300);
    reactor->Arm(a, 1'100);
    reactor->Arm(b, 1'200);
  });
  CHECK_FALSE(reactor->Tick());
  now_ns = 1'250;
  CHECK(reactor->Tick());
  CHECK(ran == std::vector<int>{1, 2});
  // Moved to later, then cancelled: does not run.
  InSeat(*reactor, [&] {
    reactor->Arm(c, 1'400);
    reactor->Arm(a, 1'350);
    reactor->Cancel(a);
    reactor->Cancel(a);
  });
  now_ns = 1'399;
  CHECK_FALSE(reactor->Tick());
  now_ns = 1'400;
  CHECK(reactor->Tick());
  CHECK(ran == std::vector<int>{1, 2, 3});
}

TEST_CASE("a timer may arm itself again and cancel others from its callback", "[reactor][timer]") {
  int64_t now_ns = 0;
  auto reactor = Reactor::Create(Virtual(&now_ns)).value();
  int runs = 0;
  FunctionTimer victim([&] { FAIL("cancelled"); });
  FunctionTimer periodic([] {});
  periodic.function = [&] {
    reactor->Cancel(victim);
    if (++runs < 3) reactor->Arm(periodic, reactor->now_ns() + 10);
  };
  InSeat(*reactor, [&] {
    reactor->Arm(periodic, 10);
    reactor->Arm(victim, 10);
  });
  for (now_ns = 10; now_ns < 100; now_ns += 10) reactor->Tick();
  CHECK(runs == 3);
}

TEST_CASE("the heap keeps order under random arming, moving and cancelling", "[reactor][timer]") {
  std::mt19937 random(7);
  TimerHeap heap;
  std::vector<std::unique_ptr<Timer>> timers;
  for (int i = 0; i < 300; ++i) timers.push_back(std::make_unique<Timer>([](Timer*) {}));
  size_t armed = 0;
  for (int step = 0; step < 20'000; ++step) {
    Timer& timer = *timers[random() % timers.size()];
    if (random() % 4 == 0) {
      heap.Cancel(timer);
    } else {
      heap.Arm(timer, static_cast<int64_t>(random() % 1'000));
    }
  }
  for (const auto& timer : timers) armed += timer->heap_index != ~0u;
  int64_t last_ns = -1;
  size_t popped = 0;
  while (Timer* timer = heap.PopDue(1'000)) {
    REQUIRE(timer->due_ns >= last_ns);
    last_ns = timer->due_ns;
    REQUIRE(timer->heap_index == ~0u);
    ++popped;
  }
  CHECK(popped == armed);
  CHECK(heap.empty());
}

TEST_CASE("a sleeping reactor's timer wakes it, whoever armed it", "[reactor][timer]") {
  ReactorOptions options;
  options.pin = false;
  auto reactor = Reactor::Create(options).value();
  std::this_thread::sleep_for(std::chrono::milliseconds(5));  // asleep, without a timer
  std::atomic<uint32_t> done{0};
  int64_t ran_ns = 0;
  FunctionTimer timer([&] {
    ran_ns = Reactor::NowNs();
    Finish(*reactor, done);
  });
  while (!reactor->TryEnter()) std::this_thread::yield();
  const int64_t due_ns = Reactor::NowNs() + 20'000'000;
  reactor->Arm(timer, due_ns + 50'000'000);
  reactor->Arm(timer, due_ns);  // earlier than what the kernel may have been told
  reactor->Leave();
  SECTION("nobody is blocked") {
    for (int i = 0; i < 5'000 && done.load() == 0; ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    REQUIRE(done.load() == 1);
  }
  SECTION("a caller is blocked on it") { reactor->DriveUntil(done); }
  CHECK(ran_ns >= due_ns);
  CHECK(ran_ns < due_ns + 500'000'000);
}

}  // namespace verbena::reactor
