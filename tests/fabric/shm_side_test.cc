// What a hostile or broken peer can send on a shm link's side socket.
#include <linux/sockios.h>
#include <sys/ioctl.h>
#include <sys/stat.h>

#include <atomic>
#include <string>
#include <thread>

#include "absl/strings/str_cat.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_victim.h"

#ifndef MFD_HUGETLB
#define MFD_HUGETLB 4u
#endif

namespace verbena::contract {
namespace {

constexpr uint64_t kBuffer = 77;

bool Names(const std::string& cause, const std::string& code, const std::string& words) {
  INFO(cause);
  CHECK(cause.find(code) != std::string::npos);
  CHECK(cause.find(words) != std::string::npos);
  return true;
}

TEST_CASE("exports that could shrink, lie about their size or have no memory close the link",
          "[shm][hostile]") {
  const auto closed = [](uint64_t offset, uint64_t bytes, int fd, const std::string& words) {
    Victim victim;
    fabric::RemoteKey key;
    victim.peer.leases.Add(kBuffer, 0, 4096, key);
    victim.Export(kBuffer, offset, bytes, fd);
    if (fd >= 0) close(fd);
    CHECK(victim.Read(key, 0, 64) == Error::kLinkDown);
    Names(victim.DownWith(), "INVALID_ARGUMENT", words);
  };
  const int unsealed = memfd_create("unsealed", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(unsealed, 8192) == 0);
  closed(0, 8192, unsealed, "seals 0");
  closed(0, 8193, SealedMemfd(8192), "+8193) of a memfd of 8192");
  closed(4096, 8192, SealedMemfd(8192), "[4096, +8192) of a memfd of 8192");
  closed(~uint64_t{0} - 4095, 8192, SealedMemfd(8192), "of a memfd of 8192");
  closed(100, 4096, SealedMemfd(8192), "[100, +4096)");
  closed(0, 0, SealedMemfd(8192), "+0)");
  closed(0, 8192, -1, "with 0 descriptors");
}

TEST_CASE("exports of huge pages, which may vanish under a reader, close the link",
          "[shm][hostile]") {
  constexpr uint64_t kHuge = 2 << 20;
  const int fd = memfd_create("huge", MFD_ALLOW_SEALING | MFD_HUGETLB);
  if (fd < 0) {
    WARN("the kernel has no huge pages");
    return;
  }
  REQUIRE(ftruncate(fd, kHuge) == 0);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  Victim victim;
  victim.Export(kBuffer, 0, kHuge, fd);
  close(fd);
  Names(victim.DownWith(), "INVALID_ARGUMENT", "huge pages");
}

TEST_CASE("what is neither an export nor a withdrawal closes the link", "[shm][hostile]") {
  SECTION("an unknown mark") {
    Victim victim;
    victim.SendAside({0x11223344, 0, kBuffer, 0, 4096}, -1);
    Names(victim.DownWith(), "INVALID_ARGUMENT", "11223344");
  }
  SECTION("half a message") {
    Victim victim;
    REQUIRE(send(victim.peer.channel->fd(), "garbage", 7, MSG_NOSIGNAL) == 7);
    Names(victim.DownWith(), "INVALID_ARGUMENT", "7 bytes");
  }
  SECTION("a withdrawal with a descriptor") {
    Victim victim;
    const int fd = SealedMemfd(8192);
    victim.SendAside({0x53425657, 0, kBuffer, 0, 0}, fd);
    close(fd);
    Names(victim.DownWith(), "INVALID_ARGUMENT", "1 descriptors");
  }
  SECTION("an export of no kind of device") {
    Victim victim;
    const int fd = SealedMemfd(8192);
    victim.SendAside({0x53425645, 250, kBuffer, 0, 8192}, fd);
    close(fd);
    Names(victim.DownWith(), "INVALID_ARGUMENT", "device kind 250");
  }
  SECTION("the same export again") {
    Victim victim;
    const int fd = SealedMemfd(8192);
    victim.Export(kBuffer, 0, 8192, fd);
    fabric::RemoteKey key;
    victim.peer.leases.Add(kBuffer, 0, 4096, key);
    REQUIRE(victim.Read(key, 0, 64) == Error::kOk);
    victim.Export(kBuffer, 0, 8192, fd);
    close(fd);
    Names(victim.DownWith(), "INVALID_ARGUMENT", "buffer 77 exported twice");
  }
}

TEST_CASE("withdrawals of what is not exported close the link: they make no room for more exports",
          "[shm][hostile]") {
  Victim victim;
  const int fd = SealedMemfd(8192);
  victim.Export(kBuffer, 0, 8192, fd);
  close(fd);
  fabric::RemoteKey key;
  victim.peer.leases.Add(kBuffer, 0, 4096, key);
  REQUIRE(victim.Read(key, 0, 64) == Error::kOk);
  victim.Withdraw(kBuffer + 1);
  Names(victim.DownWith(), "INVALID_ARGUMENT", "buffer 78");
}

TEST_CASE("more exports than a link may have close it, and name the limit", "[shm][hostile]") {
  Victim victim;
  const int fd = SealedMemfd(8192);
  // On a device that is not here, so that they cost no descriptors.
  for (uint64_t buffer = 0; buffer < fabric::shm::kExportsMax; ++buffer) {
    victim.ExportElsewhere(buffer, fd);
    if (buffer % 100 == 99) {
      REQUIRE(victim.Until([&] {
        int unread = 0;
        return ioctl(victim.peer.channel->fd(), SIOCOUTQ, &unread) == 0 && unread == 0;
      }));
    }
  }
  REQUIRE(victim.events.down[kLink].empty());
  victim.ExportElsewhere(5000, fd);
  close(fd);
  Names(victim.DownWith(), "RESOURCE_EXHAUSTED", "more than 1024 slabs");
}

TEST_CASE("memory on a device that this process has not cannot be READ, and the link lives",
          "[shm]") {
  Victim victim;
  const int fd = SealedMemfd(8192);
  victim.ExportElsewhere(kBuffer, fd);
  victim.Export(kBuffer + 1, 0, 8192, fd);
  close(fd);
  fabric::RemoteKey elsewhere, here;
  victim.peer.leases.Add(kBuffer, 0, 4096, elsewhere);
  victim.peer.leases.Add(kBuffer + 1, 0, 4096, here);
  // It asks for stages, and this owner has none.
  fabric::shm::StageAnswer& answer = victim.peer.mine.desk().answers[0];
  answer.error.store(static_cast<uint64_t>(Error::kUnsupported));
  answer.sequence.store(1);
  CHECK(victim.Read(elsewhere, 0, 64) == Error::kUnsupported);
  CHECK(victim.Read(here, 0, 64) == Error::kOk);
  victim.Withdraw(kBuffer);
  victim.Withdraw(kBuffer + 1);
  CHECK(victim.Until([&] { return victim.Read(here, 0, 64) == Error::kUnsupported; }));
  CHECK(victim.events.down[kLink].empty());
}

TEST_CASE("an owner says of a READ by way of stages what it may, or its link ends",
          "[shm][hostile]") {
  const auto read = [](Victim& victim, uint64_t status) {
    const int fd = SealedMemfd(8192);
    victim.ExportElsewhere(kBuffer, fd);
    close(fd);
    fabric::RemoteKey key;
    victim.peer.leases.Add(kBuffer, 0, 4096, key);
    fabric::shm::StageAnswer& answer = victim.peer.mine.desk().answers[0];
    answer.error.store(status);
    answer.sequence.store(1);
    return victim.Read(key, 0, 64);
  };
  for (const Error error : {Error::kLeaseLost, Error::kOutOfBounds, Error::kUnsupported,
                            Error::kNoMemory, Error::kFault}) {
    Victim victim;
    CHECK(read(victim, static_cast<uint64_t>(error)) == error);
    CHECK(victim.events.down[kLink].empty());
  }
  // With "lane down" it would be READ again for as long as the peer says that.
  for (const uint64_t status :
       {static_cast<uint64_t>(Error::kLaneDown), static_cast<uint64_t>(Error::kLinkDown),
        uint64_t{8}, uint64_t{1} << 32, ~uint64_t{0}}) {
    Victim victim;
    CHECK(read(victim, status) == Error::kLinkDown);
    Names(victim.DownWith(), "INVALID_ARGUMENT", absl::StrCat("status ", status));
  }
}

TEST_CASE("a peer that exports and withdraws without end does not keep the setup thread",
          "[shm][hostile]") {
  Victim victim;
  const int fd = SealedMemfd(8192);
  // As much as the socket takes while nobody looks.
  int messages = 0;
  for (; messages < 200; messages += 2) {
    victim.Export(100 + static_cast<uint64_t>(messages), 0, 8192, fd);
    victim.Withdraw(100 + static_cast<uint64_t>(messages));
  }
  victim.Export(kBuffer, 0, 8192, fd);
  close(fd);
  fabric::RemoteKey key;
  victim.peer.leases.Add(kBuffer, 0, 4096, key);
  // Expect: jobs of a bounded length each, and what came last is found all the same.
  CHECK(victim.Read(key, 0, 64) == Error::kOk);
  CHECK(victim.jobs >= messages / fabric::shm::kMessagesPerTake);
  CHECK(victim.events.down[kLink].empty());
}

TEST_CASE("a READ from memory with holes makes no more of it than the READ needs",
          "[shm][hostile]") {
  constexpr uint64_t kSparse = 256 << 20;
  Victim victim(true, memory::HostDevice());
  const int fd = SealedMemfd(kSparse);
  victim.Export(kBuffer, 0, kSparse, fd);
  fabric::RemoteKey key;
  victim.peer.leases.Add(kBuffer, 0, kSparse, key);
  const auto made = [fd] {
    struct stat file {};
    REQUIRE(fstat(fd, &file) == 0);
    return static_cast<uint64_t>(file.st_blocks) * 512;
  };
  REQUIRE(made() == 0);
  REQUIRE(victim.Read(key, 0, 64 << 10) == Error::kOk);
  CHECK(made() <= 4 << 20);
  REQUIRE(victim.Read(key, 100 << 20, 1 << 20) == Error::kOk);
  CHECK(made() <= 8 << 20);
  REQUIRE(victim.Read(key, kSparse - 4096, 4096) == Error::kOk);
  CHECK(victim.Read(key, kSparse - 4096, 128 << 10) == Error::kOutOfBounds);
  CHECK(made() <= 12 << 20);
  close(fd);
}

TEST_CASE("a peer that says a GPU's of its host memory has no large READs of that bounce here",
          "[shm][hostile][device]") {
  constexpr size_t kBytes = 16 << 20;
  memory::FakeDevice& fake = memory::FakeDevice::Install(0);
  Victim victim;
  const std::vector<std::byte> memory(kBytes);
  auto target = MakeFake(fake, kBytes);
  fabric::RemoteKey key;
  victim.peer.leases.Add(0, reinterpret_cast<uint64_t>(memory.data()), kBytes, key);
  const auto read = [&](size_t bytes) {
    const ReadSlot slot{++victim.reads, 1};
    const fabric::LocalPiece piece{&fake, target->base(), bytes};
    victim.fabric.Read(slot, kLink, kReader, key, 0, {&piece, 1});
    auto& answers = victim.events.reads[slot.word()];
    REQUIRE(victim.Until([&] { return !answers.empty(); }));
    return answers[0];
  };
  CHECK(read(kBytes) == Error::kUnsupported);
  CHECK(read(8 << 20) == Error::kOk);
  CHECK(victim.events.down[kLink].empty());
}

TEST_CASE("memory that cannot be exported since the peer is gone is refused for that", "[shm]") {
  Victim victim;
  REQUIRE(shutdown(victim.peer.channel->fd(), SHUT_RDWR) == 0);
  const memory::RegionRef region = MakeSlab(1 << 20);
  victim.fabric.Lease({1, 1}, kLink, {0, LaneRole::kOwner, 1}, region, region->base(), 4096);
  // The export has failed before the fabric looks at the socket itself.
  std::atomic<bool> tried{false};
  victim.setup.Post([&] { tried = true; });
  while (!tried) std::this_thread::yield();
  auto& leased = victim.events.leased[LeaseSlot{1, 1}.word()];
  REQUIRE(victim.Until([&] { return !leased.empty(); }));
  CHECK(leased[0].error == Error::kLinkDown);
}

}  // namespace
}  // namespace verbena::contract
