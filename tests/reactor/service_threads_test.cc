#include "rpc/reactor/service_threads.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <future>
#include <thread>
#include <vector>

#include "tests/catch.h"

namespace verbena::reactor {

TEST_CASE("setup jobs run in order on one thread that is not the caller's", "[service]") {
  std::vector<int> order;
  std::promise<bool> on_setup;
  for (int i = 0; i < 100; ++i) PostSetup([&order, i] { order.push_back(i); });
  PostSetup([&] { on_setup.set_value(OnSetupThread()); });
  CHECK(on_setup.get_future().get());
  CHECK_FALSE(OnSetupThread());
  REQUIRE(order.size() == 100);
  for (int i = 0; i < 100; ++i) CHECK(order[i] == i);
}

TEST_CASE("disposal does not wait for setup", "[service]") {
  std::promise<void> blocked, disposed;
  auto release = blocked.get_future();
  PostSetup([&release] { release.wait(); });
  PostDisposal([&disposed] { disposed.set_value(); });
  const bool ran =
      disposed.get_future().wait_for(std::chrono::seconds(20)) == std::future_status::ready;
  blocked.set_value();
  std::promise<void> drained;
  PostSetup([&drained] { drained.set_value(); });
  drained.get_future().get();
  CHECK(ran);
}

TEST_CASE("a job may post another; what it holds dies before the next runs", "[service]") {
  auto held = std::make_shared<int>(0);
  std::weak_ptr<int> watch = held;
  std::promise<bool> gone;
  PostSetup([held = std::move(held), &watch, &gone] {
    PostSetup([&watch, &gone] { gone.set_value(watch.expired()); });
  });
  CHECK(gone.get_future().get());
}

TEST_CASE("delayed jobs run in the order of their times", "[watch]") {
  std::vector<int> order;
  std::promise<void> last;
  Watch& watch = Watch::Get();
  watch.PostAfter(absl::Milliseconds(30), [&] {
    order.push_back(3);
    last.set_value();
  });
  watch.PostAfter(absl::Milliseconds(10), [&] { order.push_back(2); });
  watch.Post([&] { order.push_back(watch.OnWatchThread() ? 1 : 0); });
  last.get_future().get();
  CHECK(order == std::vector<int>{1, 2, 3});
}

TEST_CASE("a watched descriptor's callback runs until it is removed", "[watch]") {
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  std::atomic<int> bytes{0};
  Watch& watch = Watch::Get();
  watch.AddFd(pipe_fds[0], EPOLLIN, [&](uint32_t) {
    char byte;
    if (read(pipe_fds[0], &byte, 1) == 1) bytes.fetch_add(1);
  });
  REQUIRE(write(pipe_fds[1], "ab", 2) == 2);
  for (int i = 0; i < 5'000 && bytes.load() < 2; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  CHECK(bytes.load() == 2);
  // Switched off: nothing arrives.
  watch.ModifyFd(pipe_fds[0], 0);
  REQUIRE(write(pipe_fds[1], "c", 1) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(10));
  CHECK(bytes.load() == 2);
  watch.RemoveFd(pipe_fds[0]);
  watch.RemoveFd(pipe_fds[0]);  // again: harmless
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

TEST_CASE("removing a descriptor waits for its callback, also while it fires all the time",
          "[watch]") {
  for (int round = 0; round < 200; ++round) {
    int pipe_fds[2];
    REQUIRE(pipe(pipe_fds) == 0);
    auto alive = std::make_unique<std::atomic<int>>(0);
    Watch& watch = Watch::Get();
    watch.AddFd(pipe_fds[1], EPOLLOUT, [raw = alive.get()](uint32_t) { raw->fetch_add(1); });
    while (alive->load() == 0) std::this_thread::yield();
    watch.RemoveFd(pipe_fds[1]);
    alive.reset();  // the sanitizers see a callback that still runs
    close(pipe_fds[0]);
    close(pipe_fds[1]);
  }
}

TEST_CASE("a callback may remove its own descriptor", "[watch]") {
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  std::promise<void> removed;
  std::atomic<int> runs{0};
  Watch& watch = Watch::Get();
  watch.AddFd(pipe_fds[1], EPOLLOUT, [&](uint32_t) {
    runs.fetch_add(1);
    watch.RemoveFd(pipe_fds[1]);
    removed.set_value();
  });
  removed.get_future().get();
  std::promise<void> later;
  watch.PostAfter(absl::Milliseconds(5), [&] { later.set_value(); });
  later.get_future().get();
  CHECK(runs.load() == 1);
  close(pipe_fds[0]);
  close(pipe_fds[1]);
}

}  // namespace verbena::reactor
