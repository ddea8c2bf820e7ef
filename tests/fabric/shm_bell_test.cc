// What a peer can do to the bells, whose open file descriptions it shares with this side.
#include <poll.h>

#include <functional>
#include <thread>

#include "rpc/base/slowdown.h"
#include "tests/fabric/shm_victim.h"

namespace verbena::contract {
namespace {

constexpr uint64_t kFull = ~uint64_t{0} - 1;

void LetBlock(int bell) { REQUIRE(fcntl(bell, F_SETFL, 0) == 0); }

void Write(int bell, uint64_t count) { REQUIRE(write(bell, &count, sizeof count) == sizeof count); }

// Does `rescue` if `act` has not ended after a second; whether it had to.
bool Blocks(const std::function<void()>& act, const std::function<void()>& rescue) {
  std::atomic<bool> ended{false}, rescued{false};
  std::thread watch([&] {
    for (int i = 0; i < 100 * kSlowdown && !ended; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    if (ended) return;
    rescued = true;
    rescue();
  });
  act();
  ended = true;
  watch.join();
  return rescued;
}

TEST_CASE("a peer whose own bell is full, and would block, is not waited for", "[shm][hostile]") {
  Victim victim;
  LetBlock(victim.bell);
  Write(victim.bell, kFull);
  victim.peer.mine.control().sleeping.store(1);
  const bool blocks = Blocks([&] { REQUIRE(SendFrame(victim.fabric, kLink, 64, 1)); },
                             [&] {
                               uint64_t count = 0;
                               REQUIRE(read(victim.bell, &count, sizeof count) == sizeof count);
                             });
  CHECK_FALSE(blocks);
}

TEST_CASE("a peer that lets this side's bell block does not keep its reactor", "[shm][hostile]") {
  Victim victim;
  REQUIRE(victim.Until([&] { return !victim.fabric.Arm(); }));
  LetBlock(victim.peer.peer_bell);
  // As after a sleep.
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const bool blocks =
      Blocks([&] { victim.fabric.Disarm(); }, [&] { Write(victim.peer.peer_bell, 1); });
  CHECK_FALSE(blocks);
  // And it is still heard.
  REQUIRE(victim.Until([&] { return !victim.fabric.Arm(); }));
  Write(victim.peer.peer_bell, 1);
  pollfd ready{victim.fabric.fd(), POLLIN, 0};
  CHECK(poll(&ready, 1, 5000) == 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  victim.fabric.Disarm();
}

TEST_CASE("a peer that fills this side's bell up does not keep the setup thread",
          "[shm][hostile]") {
  Victim victim;
  LetBlock(victim.peer.peer_bell);
  Write(victim.peer.peer_bell, kFull);
  const int fd = SealedMemfd(8192);
  victim.Export(77, 0, 8192, fd);
  close(fd);
  fabric::RemoteKey key;
  victim.peer.leases.Add(77, 0, 4096, key);
  const bool blocks =
      Blocks([&] { CHECK(victim.Read(key, 0, 64) == Error::kOk); },
             [&] {
               uint64_t count = 0;
               REQUIRE(read(victim.peer.peer_bell, &count, sizeof count) == sizeof count);
             });
  CHECK_FALSE(blocks);
}

TEST_CASE("a ring for a cold link is not forgotten by who enters and leaves without polling",
          "[shm]") {
  Victim victim;
  REQUIRE(victim.Until([&] { return victim.fabric.hot_links() == 0; }));
  REQUIRE(victim.Until([&] { return !victim.fabric.Arm(); }));
  std::byte frame[64] = {};
  victim.peer.out.Write(frame, sizeof frame);
  Write(victim.peer.peer_bell, 1);
  std::this_thread::sleep_for(std::chrono::milliseconds(1));
  // Somebody comes for something else, as if it had been asleep, and goes.
  victim.fabric.Disarm();
  // Expect: there is something to poll first.
  REQUIRE(victim.fabric.HasLater());
  REQUIRE(victim.fabric.Arm());
  victim.fabric.Poll(victim.events);
  CHECK(victim.events.frame_count == 1);
  CHECK(victim.Until([&] { return !victim.fabric.Arm(); }));
}

TEST_CASE("what the setup thread did wakes a reactor that sleeps, each time", "[shm]") {
  Victim victim;
  const int fd = SealedMemfd(8192);
  for (uint64_t buffer = 1; buffer < 5; ++buffer) {
    victim.Export(buffer, 0, 8192, fd);
    fabric::RemoteKey key;
    victim.peer.leases.Add(buffer, 0, 4096, key);
    victim.into.resize(64);
    const fabric::LocalPiece piece{&PlainDevice(), victim.into.data(), 64};
    const ReadSlot slot{100 + static_cast<uint32_t>(buffer), 1};
    victim.fabric.Read(slot, kLink, kReader, key, 0, {&piece, 1});
    // Never polled but after it has slept.
    const auto& answers = victim.events.reads[slot.word()];
    while (answers.empty()) {
      victim.fabric.Poll(victim.events);
      if (!answers.empty() || victim.fabric.Arm()) continue;
      pollfd ready{victim.fabric.fd(), POLLIN, 0};
      REQUIRE(poll(&ready, 1, 5000) == 1);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      victim.fabric.Disarm();
    }
    CHECK(answers[0] == Error::kOk);
  }
  close(fd);
}

}  // namespace
}  // namespace verbena::contract
