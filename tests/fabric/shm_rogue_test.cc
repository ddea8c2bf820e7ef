// A peer that writes anything into what it shares with this process, while memory of devices is
// READ both ways and in streams.
#include <algorithm>
#include <deque>
#include <memory>
#include <random>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "rpc/base/log.h"
#include "rpc/memory/fake_stream.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_victim.h"

namespace verbena::contract {
namespace {

constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kBytes = 3 << 20;  // several stages

struct Rogue {
  explicit Rogue(uint32_t seed) : random(seed) {
    victim.events.keep_frames = false;
    static auto* const all = new std::deque<memory::FakeStream>;
    for (uint32_t i = 0; i < 4; ++i) streams.push_back(&all->emplace_back());
  }
  uint64_t Up(uint64_t below) { return random() % below; }
  // Numbers that something may believe.
  uint64_t Word() {
    switch (Up(6)) {
      case 0:
        return ~uint64_t{0} - Up(3);
      case 1:
        return Up(5) << 24 | Up(2) << 23;  // a lease's word
      case 2:
        return Up(uint64_t{1} << 63);
      case 3:
        return kBytes - 64 + Up(128);
      case 4:
        return fabric::shm::kStageBytes + Up(2);
      default:
        return Up(12);
    }
  }
  void Scribble() {
    fabric::shm::Desk& desk = victim.peer.mine.desk();
    switch (Up(6)) {
      case 0: {
        fabric::shm::LeaseEntry& entry = victim.peer.mine.leases()[Up(4)];
        std::atomic<uint64_t>* const fields[] = {&entry.word, &entry.start, &entry.bytes,
                                                 &entry.buffer};
        // Mostly a lease of something that is there.
        entry.word.store((1 + Up(2)) << 24);
        entry.start.store(Up(2) * 4096);
        entry.bytes.store(kBytes);
        entry.buffer.store(Up(3) == 0 ? fabric::shm::kStagedBuffer : 77 + Up(exports + 1));
        if (Up(2) == 0) fields[Up(4)]->store(Word());
        return;
      }
      case 1:
      case 2: {
        fabric::shm::StageRequest& request = desk.requests[Up(fabric::shm::kStages)];
        request.word.store(Up(3) == 0 ? Word() : leased_word);
        request.entry.store(Up(3) == 0 ? Word() : 0);
        request.offset.store(Word());
        request.bytes.store(Word());
        request.sequence.store(Word());
        desk.asked.store(Word());
        return;
      }
      case 3: {
        for (uint32_t i = 0; i < fabric::shm::kStages; ++i) {
          fabric::shm::StageAnswer& answer = desk.answers[i];
          // Anything else is seen when it is looked at, and the link ends.
          constexpr Error kOthers[] = {Error::kLeaseLost, Error::kOutOfBounds, Error::kUnsupported,
                                       Error::kNoMemory, Error::kFault};
          answer.error.store(Up(4) == 0 ? static_cast<uint64_t>(kOthers[Up(5)]) : 0);
          if (Up(400) == 0) answer.error.store(Word());
          answer.buffer.store(Up(6) == 0 ? Word() : 77 + Up(exports + 1));
          answer.start.store(Up(2) == 0 ? Word() : 0);
          const auto& asked = victim.peer.theirs.desk().requests[i].sequence;
          answer.sequence.store(Up(6) == 0 ? Word() : asked.load());
        }
        return;
      }
      case 4: {
        fabric::shm::Hold& hold = desk.holds[Up(fabric::shm::kHolds)];
        hold.entry.store(Up(2) == 0 ? 0 : Word());
        hold.word.store(Up(2) == 0 ? leased_word : Word());
        return;
      }
      default:
        victim.peer.mine.control().sleeping.store(static_cast<uint32_t>(Word()));
        victim.peer.mine.control().cpu.store(static_cast<uint32_t>(Word()));
    }
  }
  void Export() {
    const uint64_t size = Up(3) != 0 ? kBytes : 8192;
    const int fd = SealedMemfd(size);
    const absl::Cleanup closing = [fd] { close(fd); };
    constexpr auto kFake = static_cast<uint32_t>(Device::Kind::kFake);
    const bool of_host = Up(2) == 0;
    Victim::SideMessage message{0x53425645, of_host ? 0 : kFake, 77 + exports++, 0, size};
    // It is seen when something has to be mapped, and the link ends.
    if (Up(100) == 0) message.offset = Word();
    if (Up(100) == 0) message.bytes = Word();
    if (Up(100) == 0) message.device = static_cast<uint32_t>(Word());
    if (Up(100) == 0) message.buffer = 77;
    victim.SendAside(message, Up(100) == 0 ? -1 : fd);
  }
  void Read() {
    fabric::RemoteKey key;
    const fabric::shm::LeaseEntry* const entries = victim.peer.mine.leases();
    const uint64_t index = Up(4);
    key.words = {entries[index].word.load(), index, entries[index].buffer.load(),
                 entries[index].start.load()};
    if (Up(6) == 0) key.words[Up(4)] = Word();
    const size_t bytes = Up(3) == 0 ? 64 : Up(kBytes) + 1;
    memory::StreamOrder order;
    if (Up(2) == 0) order.stream = streams[Up(streams.size())];
    const fabric::LocalPiece piece{&to, target->base(), bytes, order};
    victim.fabric.Read({++reads, 1}, kLink, kReader, key, Up(4) == 0 ? Word() : 0, {&piece, 1});
  }
  void Lease() {
    if (leased) {
      victim.fabric.Revoke({leases, 1});
    } else {
      victim.fabric.Lease({++leases, 1}, kLink, kOwner, source, source->base(), kBytes);
    }
    leased = !leased;
  }
  void Step() {
    switch (Up(10)) {
      case 0:
      case 1:
      case 2:
        return Scribble();
      case 3:
        return Export();
      case 4:
      case 5:
        return Read();
      case 6:
        return Up(4) == 0 ? Lease() : (void)0;
      case 7:
        streams[Up(streams.size())]->Launch([] {});
        return streams[Up(streams.size())]->Finish(static_cast<int>(Up(4)));
      default:
        if (Up(3) == 0) victim.setup.Settle();  // what it maps is there
        for (uint64_t i = Up(1000); i > 0; --i) victim.fabric.Poll(victim.events);
        for (const auto& [slot, all] : victim.events.leased) {
          if (all[0].error == Error::kOk) leased_word = all[0].key.words[0];
        }
    }
  }

  memory::FakeDevice& from = memory::FakeDevice::Install(7);
  memory::FakeDevice& to = memory::FakeDevice::Install(8);
  std::shared_ptr<FakeRegion> source = MakeFake(from, kBytes), target = MakeFake(to, kBytes);
  std::vector<memory::FakeStream*> streams;  // outlive every copy
  std::mt19937 random;
  Victim victim{true, memory::HostDevice()};
  uint32_t reads = 0, leases = 0, exports = 0;
  bool leased = false;
  uint64_t leased_word = 0;
};

TEST_CASE("whatever a peer writes into what it shares, READs end and the process lives",
          "[shm][hostile][device]") {
  SetLogSink([](LogLevel, absl::string_view) {});
  const absl::Cleanup restore = [] { SetLogSink({}); };
  for (uint32_t seed = 1; seed <= 60; ++seed) {
    INFO("seed " << seed);
    Rogue rogue(seed);
    Victim& victim = rogue.victim;
    for (int i = 0; i < 400 && victim.events.ending[kLink].empty(); ++i) rogue.Step();
    for (memory::FakeStream* stream : rogue.streams) stream->Finish(1000);
    // It drops what it held, and goes.
    for (uint32_t i = 0; i < fabric::shm::kHolds; ++i) {
      victim.peer.mine.desk().holds[i].word.store(0);
    }
    victim.fabric.Close(kLink);
    REQUIRE(victim.Until([&] { return !victim.events.down[kLink].empty(); }));
    const absl::Status& cause = victim.events.down[kLink][0];
    INFO(cause.ToString());
    CHECK((absl::IsCancelled(cause) || absl::IsInvalidArgument(cause)));
    for (uint32_t i = 1; i <= rogue.reads; ++i) {
      const auto& ends = victim.events.reads[ReadSlot{i, 1}.word()];
      REQUIRE(ends.size() == 1);
      // No lane broke.
      CHECK(ends[0] != Error::kLaneDown);
    }
    for (const auto& [slot, times] : victim.events.ordered) CHECK(times == 1);
    if (rogue.leased) victim.fabric.Revoke({rogue.leases, 1});
    REQUIRE(victim.Until([&] { return victim.events.leased.size() == rogue.leases; }));
  }
}

}  // namespace
}  // namespace verbena::contract
