// shm between devices of two processes, one of which is killed while a copy stands in a stream.
#include <cstring>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/slowdown.h"
#include "rpc/memory/fake_stream.h"
#include "tests/contract/two_processes.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_subject.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr size_t kBytes = 256 << 10;
constexpr LeaseSlot kLease{1, 1};
constexpr int kFrom = 7, kTo = 8;

bool Until(End& end, absl::FunctionRef<bool()> done) {
  const int64_t deadline_ns = SteadyNs() + 10'000'000'000 * kSlowdown;
  while (!done() && SteadyNs() < deadline_ns) end.fabric->Poll(end.events);
  return done();
}

void Settle(End& end, int64_t time_ns = 100'000'000) {
  const int64_t end_ns = SteadyNs() + time_ns;
  while (SteadyNs() < end_ns) end.fabric->Poll(end.events);
}

// Frames of this test: 8 bytes of header, and one key.
void Tell(End& end, const fabric::RemoteKey& key) {
  fabric::OutFrame frame;
  while (!end.fabric->AcquireFrame(kLink, frame)) end.fabric->Poll(end.events);
  frame.bytes = 8 + sizeof key;
  memset(frame.data, 1, 8);
  memcpy(frame.data + 8, &key, sizeof key);
  end.fabric->Send(kLink, {&frame, 1});
}
bool Told(End& end, fabric::RemoteKey& key) {
  if (!Until(end, [&] { return end.events.frames_of(kLink) > 0; })) return false;
  memcpy(&key, end.events.frames[kLink].back().data() + 8, sizeof key);
  end.events.frames[kLink].clear();
  return true;
}

std::vector<std::byte> Sent() {
  std::vector<std::byte> bytes(kBytes);
  Fill(bytes.data(), kBytes, 5);
  return bytes;
}

// Leases memory of a device to the peer.
struct Owner {
  explicit Owner(End& e) : end(e) {
    from.Write(source->base(), Sent().data(), kBytes);
    end.fabric->Lease(kLease, kLink, kOwner, source, source->base(), kBytes);
    const auto& leased = end.events.leased[kLease.word()];
    VERBENA_CHECK(Until(end, [&] { return !leased.empty(); }));
    VERBENA_CHECK(leased[0].error == Error::kOk);
    Tell(end, leased[0].key);
  }
  bool Revoked() { return end.events.revoked[kLease.word()] == 1; }
  End& end;
  memory::FakeDevice& from = memory::FakeDevice::Install(kFrom);
  std::shared_ptr<FakeRegion> source = MakeFake(from, kBytes);
};

// READs it in the order of a stream that stands still.
struct Reader {
  explicit Reader(End& e) : end(e) { VERBENA_CHECK(Told(end, key)); }
  void Read(uint32_t slot, bool in_stream) {
    const memory::StreamOrder order{in_stream ? &stream : nullptr};
    const fabric::LocalPiece piece{&to, target->base(), kBytes, order};
    end.fabric->Read({slot, 1}, kLink, kReader, key, 0, {&piece, 1});
  }
  bool Stands(uint32_t slot) { return end.events.ordered[ReadSlot{slot, 1}.word()] == 1; }
  std::vector<Error>& Ends(uint32_t slot) { return end.events.reads[ReadSlot{slot, 1}.word()]; }
  bool Arrived() {
    std::vector<std::byte> seen(kBytes);
    to.Read(seen.data(), target->base(), kBytes);
    return seen == Sent();
  }
  End& end;
  fabric::RemoteKey key;
  memory::FakeStream stream;
  memory::FakeDevice& to = memory::FakeDevice::Install(kTo);
  std::shared_ptr<FakeRegion> target = MakeFake(to, kBytes);
};

TEST_CASE("kill -9 of an owner whose memory a stream has still to read", "[shm][device][kill]") {
  const bool unordered = GENERATE(false, true);
  const Subject subject = ShmThatWaits(kLongNs);
  memory::FakeDevice& to = memory::FakeDevice::Install(kTo);
  const size_t live = to.live();
  {
    OtherProcess owner(subject, kLink, [](End& end) {
      const Owner owns(end);
      while (true) end.fabric->Poll(end.events);
    });
    End& here = owner.here();
    Reader reader(here);
    for (uint32_t i = 0; i < 4; ++i) {
      reader.stream.Launch([] {});
      reader.Read(i, true);
    }
    REQUIRE(Until(here, [&] { return reader.Stands(3); }));
    to.LetCopies(0);
    if (unordered) reader.Read(10, false);  // begun, and not in a stream
    if (unordered) REQUIRE(Until(here, [&] { return to.waiting() == 5; }));
    owner.Kill();
    Settle(here);
    // Nothing ends before its copy has, and what it reads stays mapped.
    CHECK(here.events.down[kLink].empty());
    CHECK(here.events.reads.empty());
    // Its user has heard.
    REQUIRE(here.events.ending[kLink].size() == 1);
    CHECK(absl::IsUnavailable(here.events.ending[kLink][0]));
    // What has not begun ends at once.
    reader.Read(20, true);
    REQUIRE(Until(here, [&] { return !reader.Ends(20).empty(); }));
    CHECK(reader.Ends(20)[0] == Error::kLinkDown);
    to.LetCopies(-1);
    reader.stream.Finish(4);
    REQUIRE(Until(here, [&] { return !here.events.down[kLink].empty(); }));
    for (uint32_t i = 0; i < 4; ++i) CHECK(reader.Ends(i) == std::vector<Error>{Error::kOk});
    CHECK(reader.Arrived());
    if (unordered) CHECK(reader.Ends(10).size() == 1);
    CHECK(here.events.after_down == 0);
    CHECK(absl::IsUnavailable(here.events.down[kLink][0]));
  }
  CHECK(to.live() == live);
}

// The reader's part of what follows: until it is killed.
void ReadAndStand(End& end) {
  Reader reader(end);
  reader.stream.Launch([] {});
  reader.Read(1, true);
  VERBENA_CHECK(Until(end, [&] { return reader.Stands(1); }));
  Tell(end, {});
  while (true) end.fabric->Poll(end.events);
}

TEST_CASE("kill -9 of a reader whose stream holds what it reads", "[shm][device][kill]") {
  memory::FakeDevice& from = memory::FakeDevice::Install(kFrom);
  const size_t live = from.live();
  constexpr int64_t kShortNs = 1'000'000;
  enum class When { kWaits, kKept, kClosing, kQuarantined };
  const When when = GENERATE(When::kWaits, When::kKept, When::kClosing, When::kQuarantined);
  const Subject subject = ShmThatWaits(when == When::kQuarantined ? kShortNs : kLongNs,
                                       when == When::kKept ? kShortNs : kLongNs);
  {
    OtherProcess process(subject, kLink, ReadAndStand);
    End& here = process.here();
    Owner owner(here);
    fabric::RemoteKey unused;
    REQUIRE(Told(here, unused));
    if (when == When::kWaits || when == When::kKept) {
      here.fabric->Revoke(kLease);
    } else {
      here.fabric->Close(kLink);
    }
    const std::weak_ptr<FakeRegion> kept = owner.source;
    owner.source.reset();
    const bool answers = when == When::kKept || when == When::kQuarantined;
    const auto answered = [&] { return owner.Revoked() || !here.events.down[kLink].empty(); };
    if (answers) REQUIRE(Until(here, answered));
    Settle(here);
    CHECK(answered() == answers);
    CHECK_FALSE(kept.expired());
    process.Kill();
    CHECK(Until(here, answered));
    CHECK(Until(here, [&] { return kept.expired(); }));
    CHECK(here.events.after_down == 0);
    // Who closes a link is not told.
    const bool closed = when == When::kClosing || when == When::kQuarantined;
    CHECK(here.events.ending[kLink].size() == (closed ? 0 : 1));
  }
  CHECK(from.live() == live);
}

}  // namespace
}  // namespace verbena::contract
