#include <chrono>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "rpc/base/log.h"
#include "tests/catch.h"
#include "tests/reactor/fake_poller.h"

namespace verbena::reactor {
namespace {

struct Lines {
  Lines() {
    SetLogSink([this](LogLevel, absl::string_view line) {
      std::lock_guard lock(mutex);
      lines.emplace_back(line);
    });
  }
  ~Lines() { SetLogSink({}); }
  std::vector<std::string> Naming(const std::string& text) {
    std::lock_guard lock(mutex);
    std::vector<std::string> found;
    for (const std::string& line : lines) {
      if (line.find(text) != std::string::npos) found.push_back(line);
    }
    return found;
  }
  std::mutex mutex;
  std::vector<std::string> lines;
};

ReactorOptions QuickReport() {
  ReactorOptions options;
  options.pin = false;
  options.name = "stall-test";
  options.stall_report = absl::Milliseconds(20);
  return options;
}

}  // namespace

TEST_CASE("a handler that holds the reactor is reported by name while it runs, once",
          "[reactor][stall]") {
  Lines lines;
  auto reactor = Reactor::Create(QuickReport()).value();
  std::atomic<bool> release{false};
  std::atomic<uint32_t> done{0};
  FunctionWork handler([&] {
    reactor->BeginUserCode("/demo.Slow/Sleep");
    while (!release.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    reactor->EndUserCode();
    Finish(*reactor, done);
  });
  reactor->Post(handler);
  for (int i = 0; i < 5'000 && lines.Naming("/demo.Slow/Sleep").empty(); ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  // It has not returned, and is reported all the same.
  REQUIRE(lines.Naming("/demo.Slow/Sleep").size() == 1);
  CHECK(lines.Naming("/demo.Slow/Sleep")[0].find("stall-test") != std::string::npos);
  std::this_thread::sleep_for(std::chrono::milliseconds(80));
  CHECK(lines.Naming("/demo.Slow/Sleep").size() == 1);
  release.store(true);
  reactor->DriveUntil(done);
}

TEST_CASE("handlers that return in time are not reported, however many there are",
          "[reactor][stall]") {
  Lines lines;
  ReactorOptions options = QuickReport();
  options.stall_report = absl::Milliseconds(300);
  auto reactor = Reactor::Create(options).value();
  for (int i = 0; i < 200; ++i) {
    std::atomic<uint32_t> done{0};
    FunctionWork handler([&] {
      reactor->BeginUserCode("/demo.Fast/Call");
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
      reactor->EndUserCode();
      Finish(*reactor, done);
    });
    reactor->Post(handler);
    reactor->DriveUntil(done);
  }
  CHECK(lines.Naming("/demo.Fast/Call").empty());
}

}  // namespace verbena::reactor
