// shm with more memory than its links export at once, or its reader has descriptors for.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/resource.h>

#include <atomic>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/shm/exports.h"
#include "rpc/memory/known_regions.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_subject.h"
#include "tests/fabric/shm_victim.h"

namespace verbena::contract {
namespace {

using fabric::shm::Exports;
using fabric::shm::kExportsMax;
constexpr Lane kOwner{0, LaneRole::kOwner, 1};
constexpr uint64_t kPart = 128 << 10;  // enough to be faulted in first

TEST_CASE("what no lease has needed for longest makes room for other exports", "[shm][exports]") {
  Exports exports;
  for (const uint64_t buffer : {7, 3, 5}) {
    exports.Begin(buffer);
    CHECK(exports.StateOf(buffer) == Exports::State::kSending);
  }
  CHECK_FALSE(exports.TakeUnused());  // none is there yet
  for (const uint64_t buffer : {7, 3, 5}) exports.End(buffer, true);
  exports.Begin(9);
  exports.End(9, false);
  CHECK(exports.StateOf(9) == Exports::State::kNone);
  exports.Use(7);
  exports.Use(7);
  exports.Unuse(7);  // the other is there
  exports.Use(3);
  exports.Unuse(3);  // later than 5
  CHECK(exports.TakeUnused() == 5u);
  CHECK(exports.TakeUnused() == 3u);
  CHECK_FALSE(exports.TakeUnused());
  CHECK(exports.size() == 1);
  CHECK(exports.Forget(7));  // its memory is gone, leases or not
  CHECK_FALSE(exports.Forget(7));
  exports.Unuse(7);
  CHECK(exports.size() == 0);
}

// Regions of the pools' kind, all of one file.
struct Slabs {
  explicit Slabs(uint64_t count) : fd(SealedMemfd(count * kPart)) {
    base = static_cast<std::byte*>(
        mmap(nullptr, count * kPart, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    REQUIRE(base != MAP_FAILED);
    for (uint64_t i = 0; i < count; ++i) {
      std::byte* const at = base + i * kPart;
      *at = static_cast<std::byte>(i % 251);
      all.push_back(std::make_shared<memory::Region>(
          memory::HostDevice(), memory::Extent{at, kPart, memory::NextBufferId()},
          memory::RegionKind::kSlab, fd, i * kPart));
    }
  }
  ~Slabs() {
    munmap(base, all.size() * kPart);
    close(fd);
  }
  int fd;
  std::byte* base;
  std::vector<memory::RegionRef> all;
};

struct Scene {
  explicit Scene(uint32_t exports_max) : subject(ShmThatWaits(kLongNs, kLongNs, exports_max)) {
    pair.Connect(kLink);
  }
  fabric::RemoteKey Lease(uint32_t slot, const memory::RegionRef& region, size_t bytes) {
    return LeaseNow(pair, pair.server(), pair.server_events, {slot, 1}, kLink, kOwner, region, 0,
                    bytes);
  }
  // The peer looks at nothing meanwhile.
  fabric::RemoteKey LeaseAlone(uint32_t slot, const memory::RegionRef& region) {
    auto& leased = pair.server_events.leased[LeaseSlot{slot, 1}.word()];
    pair.server().Lease({slot, 1}, kLink, kOwner, region, region->base(), kPart);
    while (leased.empty()) pair.server().Poll(pair.server_events);
    REQUIRE(leased[0].error == Error::kOk);
    return leased[0].key;
  }
  void Release(uint32_t slot) {
    pair.server().Release({slot, 1});
    REQUIRE(pair.Until([&] { return pair.server_events.revoked[LeaseSlot{slot, 1}.word()] > 0; }));
  }
  Error Read(uint32_t slot, const fabric::RemoteKey& key, fabric::LocalPiece piece) {
    pair.client().Read({slot, 1}, kLink, kReader, key, 0, {&piece, 1});
    auto& answers = pair.client_events.reads[ReadSlot{slot, 1}.word()];
    REQUIRE(pair.Until([&] { return !answers.empty(); }));
    return answers[0];
  }
  Error Read(uint32_t slot, const fabric::RemoteKey& key, size_t bytes = kPart) {
    into.assign(kPart, std::byte{255});
    return Read(slot, key, {&memory::HostDevice(), into.data(), bytes});
  }
  Path PathOf(uint32_t slot) { return pair.client_events.paths[ReadSlot{slot, 1}.word()]; }
  bool Lives() { return pair.client_events.down[kLink].empty(); }

  const Subject subject;
  Pair pair{subject};
  std::vector<std::byte> into;
};

TEST_CASE("more memory is leased, one after the other, than a link exports", "[shm][exports]") {
  constexpr uint32_t kCount = kExportsMax + 76;
  const Slabs slabs(kCount);
  Scene s(kExportsMax);
  // And the first ones again, which were withdrawn.
  for (uint32_t i = 1; i <= kCount + 10; ++i) {
    const uint32_t which = (i - 1) % kCount;
    const fabric::RemoteKey key = s.Lease(i, slabs.all[which], kPart);
    REQUIRE(s.Read(i, key, 4096) == Error::kOk);
    REQUIRE(s.into[0] == static_cast<std::byte>(which % 251));
    s.Release(i);
  }
  CHECK(s.Lives());
}

TEST_CASE("memory that is withdrawn and exported anew before its reader looks is READ",
          "[shm][exports]") {
  const Slabs slabs(3);
  Scene s(3);  // the last for stages
  REQUIRE(s.Read(1, s.Lease(1, slabs.all[0], kPart), 4096) == Error::kOk);
  s.Release(1);
  fabric::RemoteKey key;
  for (uint32_t slot = 2; slot <= 4; ++slot) {
    key = s.LeaseAlone(slot, slabs.all[(slot - 1) % 3]);
    if (slot < 4) s.Release(slot);
  }
  // Expect: what is mapped is not taken for what has to be faulted in.
  CHECK(s.Read(2, key) == Error::kOk);
  CHECK(s.Lives());
}

TEST_CASE("memory is exported once though its first lease is revoked before it has been",
          "[shm][exports]") {
  const Slabs slabs(1);
  Scene s(kExportsMax);
  const memory::RegionRef& region = slabs.all[0];
  for (uint32_t slot = 1; slot < 20; ++slot) {
    s.pair.server().Lease({slot, 1}, kLink, kOwner, region, region->base(), kPart);
    s.pair.server().Revoke({slot, 1});
  }
  CHECK(s.Read(1, s.Lease(20, region, kPart)) == Error::kOk);
  CHECK(s.Lives());
}

TEST_CASE("what is leased at once beyond the exports of a link is read otherwise",
          "[shm][exports][device]") {
  constexpr uint32_t kCount = 6, kMapped = 3;
  Scene s(kMapped + 1);
  SECTION("device memory by way of stages") {
    memory::FakeDevice& from = memory::FakeDevice::Install(5);
    memory::FakeDevice& to = memory::FakeDevice::Install(6);
    const auto target = MakeFake(to, 4096);
    std::vector<std::shared_ptr<FakeRegion>> regions;
    for (uint32_t i = 1; i <= kCount; ++i) {
      regions.push_back(MakeFake(from, 4096));
      const fabric::RemoteKey key = s.Lease(i, regions.back(), 4096);
      REQUIRE(s.Read(i, key, {&to, target->base(), 4096}) == Error::kOk);
      CHECK((s.PathOf(i) == Path::kPinnedStaging) == (i > kMapped));
    }
    // There is room again, and it was not taken for memory that nobody can map.
    s.Release(1);
    const fabric::RemoteKey key = s.Lease(10, regions.back(), 4096);
    REQUIRE(s.Read(10, key, {&to, target->base(), 4096}) == Error::kOk);
    CHECK(s.PathOf(10) != Path::kPinnedStaging);
  }
  SECTION("host memory from its process") {
    const Slabs slabs(kCount);
    for (uint32_t i = 1; i <= kCount; ++i) {
      REQUIRE(s.Read(i, s.Lease(i, slabs.all[i - 1], kPart)) == Error::kOk);
      CHECK(s.into[0] == static_cast<std::byte>(i - 1));
    }
  }
  CHECK(s.Lives());
}

TEST_CASE("more memory is leased in one go than a side channel takes", "[shm][exports]") {
  constexpr uint32_t kCount = 2000;
  const Slabs slabs(kCount);
  Scene s(kExportsMax);
  fabric::RemoteKey last;
  for (uint32_t i = 1; i <= kCount; ++i) last = s.LeaseAlone(i, slabs.all[i - 1]);
  CHECK(s.Read(1, last) == Error::kOk);
  CHECK(s.into[0] == static_cast<std::byte>((kCount - 1) % 251));
  CHECK(s.Lives());
}

// Descriptors of this process, from now on.
struct Limit {
  explicit Limit(rlim_t limit) {
    REQUIRE(getrlimit(RLIMIT_NOFILE, &before) == 0);
    const rlimit now{limit, before.rlim_max};
    REQUIRE(setrlimit(RLIMIT_NOFILE, &now) == 0);
  }
  ~Limit() { setrlimit(RLIMIT_NOFILE, &before); }
  rlimit before{};
};

struct SaidOnce {
  SaidOnce() {
    lines = 0;
    SetLogSink([](LogLevel, absl::string_view line) {
      lines += absl::StrContains(line, "RLIMIT_NOFILE is ");
    });
  }
  ~SaidOnce() { SetLogSink({}); }
  static inline std::atomic<int> lines{0};
};

// What a peer exports of a fake device.
void ExportFake(Victim& victim, uint64_t buffer, int fd, int index) {
  Victim::SideMessage message{0x53425645, static_cast<uint32_t>(Device::Kind::kFake), buffer, 0,
                              4096};
  message.hardware_and_handle[0] = std::byte{0xfa};
  message.hardware_and_handle[1] = static_cast<std::byte>(index);
  victim.SendAside(message, fd);
}

TEST_CASE("device memory takes half of a process's descriptors, and the rest is read by stages",
          "[shm][exports][device]") {
  constexpr uint64_t kLimit = 200;
  memory::FakeDevice::Install(0);
  Victim victim;
  const SaidOnce said;
  const Limit limit(kLimit);
  const int fd = SealedMemfd(8192);
  constexpr uint64_t kFirst = 100;
  for (uint64_t i = 0; i < kLimit / 2 + 5; ++i) {
    ExportFake(victim, kFirst + i, fd, 0);
    if (i % 50 != 49) continue;
    REQUIRE(victim.Until([&] {
      int unread = 0;
      return ioctl(victim.peer.channel->fd(), SIOCOUTQ, &unread) == 0 && unread == 0;
    }));
  }
  fabric::RemoteKey mapped, staged;
  victim.peer.leases.Add(kFirst, 0, 4096, mapped);
  victim.peer.leases.Add(kFirst + kLimit / 2 + 4, 0, 4096, staged);
  CHECK(victim.Read(mapped, 0, 64) == Error::kOk);
  CHECK(SaidOnce::lines == 1);
  // Its stages have room.
  victim.Export(77, 0, 8192, fd);
  fabric::shm::StageAnswer& answer = victim.peer.mine.desk().answers[0];
  answer.buffer.store(77);
  answer.sequence.store(1);
  CHECK(victim.Read(staged, 0, 64) == Error::kOk);
  CHECK(victim.events.paths[ReadSlot{victim.reads, 1}.word()] == Path::kPinnedStaging);
  CHECK(victim.events.down[kLink].empty());
  close(fd);
}

TEST_CASE("an export for which no descriptor is left costs its READs alone, until it comes anew",
          "[shm][exports]") {
  constexpr uint64_t kBuffer = 77;
  Victim victim;
  const SaidOnce said;
  const int fd = SealedMemfd(8192);
  fabric::RemoteKey key, other;
  victim.peer.leases.Add(kBuffer, 0, 4096, key);
  victim.peer.leases.Add(kBuffer + 1, 0, 4096, other);
  {
    const Limit none(static_cast<rlim_t>(fd));
    std::vector<int> filled;
    const absl::Cleanup empty = [&] {
      for (const int one : filled) close(one);
    };
    for (int one = dup(fd); one >= 0; one = dup(fd)) filled.push_back(one);
    victim.Export(kBuffer, 0, 8192, fd);
    victim.Export(kBuffer + 1, 0, 8192, fd);
    CHECK(victim.Read(key, 0, 64) == Error::kNoMemory);
    CHECK(victim.Read(other, 0, 64) == Error::kNoMemory);
  }
  CHECK(SaidOnce::lines == 1);
  CHECK(victim.Read(key, 0, 64) == Error::kNoMemory);
  victim.Withdraw(kBuffer);
  victim.Export(kBuffer, 0, 8192, fd);
  CHECK(victim.Until([&] { return victim.Read(key, 0, 64) == Error::kOk; }));
  CHECK(victim.events.down[kLink].empty());
  close(fd);
}

}  // namespace
}  // namespace verbena::contract
