// Reactors without a thread: what simulations run on.
#include <string>
#include <vector>

#include "tests/catch.h"
#include "tests/reactor/fake_poller.h"

namespace verbena::reactor {
namespace {

ReactorOptions NoThread() {
  ReactorOptions options;
  options.thread = false;
  return options;
}

}  // namespace

TEST_CASE("a tick polls, then runs what that woke, then flushes", "[reactor][virtual]") {
  auto reactor = Reactor::Create(NoThread()).value();
  FakePoller poller;
  std::vector<std::string> order;
  FunctionWork user([&] {
    order.push_back("user");
    CHECK(Reactor::Current() == reactor.get());
    CHECK(reactor->InSeat());
  });
  FunctionWork posted([&] { order.push_back("posted"); });
  poller.on_message = [&] {
    order.push_back("message");
    reactor->RunSoon(user);
  };
  reactor->AddPoller(poller);
  poller.Ring();
  reactor->Post(posted);
  const uint64_t flushes = poller.flushes.load();
  CHECK(reactor->Tick());
  CHECK(order == std::vector<std::string>{"message", "posted", "user"});
  CHECK(poller.flushes.load() > flushes);
  CHECK_FALSE(reactor->Tick());
  CHECK(Reactor::Current() == nullptr);
  reactor->RemovePoller(poller);
}

TEST_CASE("work queued by user code runs in the next tick", "[reactor][virtual]") {
  auto reactor = Reactor::Create(NoThread()).value();
  int runs = 0;
  FunctionWork again([] {});
  again.function = [&] {
    if (++runs < 3) reactor->RunSoon(again);
  };
  REQUIRE(reactor->TryEnter());
  reactor->RunSoon(again);
  reactor->Leave();
  CHECK(reactor->Tick());
  CHECK(runs == 1);
  while (reactor->Tick()) {
  }
  CHECK(runs == 3);
}

TEST_CASE("blocking on a reactor without a thread ticks it, handlers included",
          "[reactor][virtual]") {
  auto reactor = Reactor::Create(NoThread()).value();
  std::atomic<uint32_t> done{0};
  FunctionWork handler([&] { done.store(1); });
  reactor->Post(handler);
  reactor->DriveUntil(done);
  CHECK(done.load() == 1);
}

}  // namespace verbena::reactor
