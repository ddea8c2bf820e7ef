// What a hostile or broken peer can do to a shm link. The peer here is a bare shm::Link, whose
// memory the test writes.
#include <fcntl.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cstring>
#include <random>

#include "rpc/base/check.h"
#include "rpc/fabric/shm/link.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/setup_thread.h"
#include "tests/fabric/shm_victim.h"

namespace verbena::contract {
namespace {

using fabric::shm::kLineBytes;

void WriteHeader(const Link& peer, uint32_t line, uint64_t word) {
  __atomic_store_n(reinterpret_cast<uint64_t*>(peer.mine.ring() + line * kLineBytes), word,
                   __ATOMIC_RELEASE);
}

TEST_CASE("a frame whose length is not one takes the link down, and names it", "[shm][hostile]") {
  for (const uint32_t length : {1u, 7u, 8193u, 65535u}) {
    Victim victim;
    WriteHeader(victim.peer, 0, 0xabcd0000u | length);
    const std::string cause = victim.DownWith();
    REQUIRE(cause.find("DATA_LOSS") != std::string::npos);
    REQUIRE(cause.find(std::to_string(length)) != std::string::npos);
    REQUIRE(cause.find("8192") != std::string::npos);
    REQUIRE(victim.events.frame_count == 0);
  }
  // No length at all, but not nothing either.
  Victim victim;
  WriteHeader(victim.peer, 0, uint64_t{1} << 32);
  REQUIRE(victim.DownWith().find("frame of 0") != std::string::npos);
}

TEST_CASE("garbage in the ring ends in frames within limits or the link's end", "[shm][hostile]") {
  std::mt19937_64 random(1);
  for (int round = 0; round < 200; ++round) {
    Victim victim;
    victim.events.keep_frames = false;
    victim.events.on_frame = [](LinkId, absl::Span<const std::byte> frame) {
      REQUIRE((frame.size() >= 8 && frame.size() <= 8192));
    };
    for (int i = 0; i < 50 && victim.events.down[kLink].empty(); ++i) {
      auto* words = reinterpret_cast<uint64_t*>(victim.peer.mine.ring());
      for (uint32_t w = 0; w < 2048; ++w) words[w] = random() & 0xffffffffffff1fff;
      victim.fabric.Poll(victim.events);
    }
    victim.fabric.Close(kLink);
    REQUIRE(victim.Until([&] { return victim.events.down[kLink].size() == 1; }));
  }
}

TEST_CASE("a peer cannot write to what this side wrote", "[shm][hostile]") {
  Victim victim(false);
  const int fd = victim.offer.fds[0];
  // Its own segment's descriptor, as the other side gets it.
  REQUIRE(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) == MAP_FAILED);
  char byte = 1;
  REQUIRE(pwrite(fd, &byte, 1, 0) < 0);
  REQUIRE(ftruncate(fd, 0) != 0);
  REQUIRE(ftruncate(fd, 1 << 30) != 0);
  for (const int f : victim.offer.fds) close(f);
}

TEST_CASE("offers with wrong descriptors are refused, each with its reason", "[shm][hostile]") {
  auto refused = [](const char* words, int which, int replacement) {
    Victim victim(false);
    close(victim.offer.fds[static_cast<size_t>(which)]);
    victim.offer.fds[static_cast<size_t>(which)] = replacement;
    const absl::Status status =
        victim.fabric.Complete(kLink, std::move(victim.offer), victim.sockets.client);
    INFO(status.ToString());
    REQUIRE(absl::IsInvalidArgument(status));
    REQUIRE(std::string(status.message()).find(words) != std::string::npos);
    REQUIRE(victim.sockets.client.side >= 0);  // not taken
    REQUIRE(fcntl(replacement, F_GETFD) < 0);  // but this was, and closed
  };
  const size_t bytes = fabric::shm::kSegmentFileBytes;
  int fd = memfd_create("unsealed", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, bytes) == 0);
  refused("seals", 0, fd);
  fd = memfd_create("short", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, 4096) == 0);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0);
  refused("4096 bytes", 0, fd);
  refused("not a memfd", 0, open("/dev/zero", O_RDWR));
  int pipe_fds[2];
  REQUIRE(pipe(pipe_fds) == 0);
  refused("not an eventfd", 1, pipe_fds[1]);
  close(pipe_fds[0]);
  refused("can block", 1, eventfd(0, 0));
}

TEST_CASE("offers of another version or other sizes are refused with both values",
          "[shm][hostile]") {
  const auto refusal = [](size_t at, const std::string& bytes) {
    Victim victim(false);
    victim.offer.blob.replace(at, bytes.size(), bytes);
    const absl::Status status =
        victim.fabric.Complete(kLink, std::move(victim.offer), victim.sockets.client);
    REQUIRE(absl::IsInvalidArgument(status));
    return std::string(status.message());
  };
  const auto says = [](const std::string& text, const std::string& words) {
    INFO(text);
    CHECK(text.find(words) != std::string::npos);
  };
  says(refusal(0, "HTTP"), "begins with 0x50545448, not 0x");
  says(refusal(4, "\x07"), "version 7, this process has 2");
  says(refusal(8, std::string("\x03\0\0\0", 4)), "rings of 3 lines");
  says(refusal(12, std::string("\x04\0\0\0", 4)), "4 leases, this process has ");
  says(refusal(0, std::string(100, 'x')), "an offer of 100 bytes, needs 40");
}

TEST_CASE("an offer of another's memory does not prove the mapping", "[shm][hostile]") {
  Victim victim(false);
  Victim stranger(false);
  std::swap(victim.offer.fds, stranger.offer.fds);
  const absl::Status status =
      victim.fabric.Complete(kLink, std::move(victim.offer), victim.sockets.client);
  REQUIRE(absl::IsFailedPrecondition(status));
  for (const int fd : stranger.offer.fds) close(fd);
}

TEST_CASE("memory of one's own is staged for peers that cannot read it", "[shm]") {
  Victim victim;
  // Both are this process: the kernel lets it.
  REQUIRE(victim.fabric.StagedBytesMax(kLink) == 0);
  victim.peer.mine.control().reads_process.store(0);
  REQUIRE(victim.fabric.StagedBytesMax(kLink) == UINT64_MAX);
}

TEST_CASE("a lease table that lies is not followed outside the mapping", "[shm][hostile]") {
  constexpr uint64_t kBuffer = 78;
  Victim victim;
  const int fd = SealedMemfd(8192);
  victim.Export(kBuffer, 0, 8192, fd);
  close(fd);
  fabric::RemoteKey key;
  for (const uint64_t start : {uint64_t{8192}, uint64_t{8000}, ~uint64_t{0}, ~uint64_t{0} - 4096}) {
    victim.peer.leases.Add(kBuffer, start, ~uint64_t{0}, key);
    REQUIRE(victim.Read(key, 0, 4096) == Error::kOutOfBounds);
    REQUIRE(victim.Read(key, 4096, 4096) == Error::kOutOfBounds);
  }
  victim.peer.leases.Add(kBuffer, 0, ~uint64_t{0}, key);
  REQUIRE(victim.Read(key, ~uint64_t{0} - 4096, 4096) == Error::kOutOfBounds);
  REQUIRE(victim.Read(key, 4096, 4096) == Error::kOk);
  // By address: memory that its owner does not have.
  victim.peer.leases.Add(0, 4096, 1 << 20, key);
  REQUIRE(victim.Read(key, 0, 4096) == Error::kFault);
  victim.peer.leases.Add(0, ~uint64_t{0} - 100, ~uint64_t{0}, key);
  REQUIRE(victim.Read(key, 0, 4096) == Error::kFault);
  REQUIRE(victim.events.down[kLink].empty());
}

TEST_CASE("links without traffic turn cold, and are heard again", "[shm]") {
  SetupThread setup;
  ShmOptions options;
  options.host = &PlainDevice();
  options.post_setup = [&setup](SetupThread::Job job) { setup.Post(std::move(job)); };
  Subject subject;
  subject.one_host = true;
  subject.make = [&](auto& client, auto& server, std::shared_ptr<void>&) {
    client = std::make_unique<ShmFabric>(options);
    server = std::make_unique<ShmFabric>(options);
  };
  Pair pair(subject);
  for (uint32_t i = 0; i < 50; ++i) pair.Connect(LinkId{i});
  auto& server = static_cast<ShmFabric&>(pair.server());
  REQUIRE(pair.Until([&] { return server.hot_links() == 0; }));
  // Awake, without its bell being looked at. Expect: found by looking at one cold link per tick.
  SendFrame(pair.client(), LinkId{33}, 64, 1);
  int polls = 0;
  while (pair.server_events.frame_count == 0 && polls < 200) {
    server.Poll(pair.server_events);
    ++polls;
  }
  REQUIRE(polls <= 51);
  REQUIRE(server.hot_links() == 1);
  REQUIRE(pair.Until([&] { return server.hot_links() == 0; }));
}

}  // namespace
}  // namespace verbena::contract
