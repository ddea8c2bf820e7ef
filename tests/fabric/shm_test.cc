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

namespace verbena::contract {
namespace {

using fabric::shm::kLineBytes;
using fabric::shm::Link;
using fabric::shm::ShmFabric;
using fabric::shm::ShmOptions;

constexpr LinkId kLink{0};
constexpr Lane kReader{0, LaneRole::kReader, 1};

struct Victim {
  explicit Victim(bool start = true)
      : fabric(Options()), bell(eventfd(0, EFD_NONBLOCK)), peer(kLink) {
    sockets = MakeSockets(true);
    auto mine = fabric.Prepare(kLink, fabric::Side::kClient, {});
    auto theirs = peer.Prepare(bell);
    REQUIRE((mine.ok() && theirs.ok()));
    offer = *std::move(theirs);
    if (!start) {
      for (const int fd : mine->fds) close(fd);
      return;
    }
    REQUIRE(peer.Complete(*mine, sockets.server).ok());
    REQUIRE(fabric.Complete(kLink, std::move(offer), sockets.client).ok());
    fabric.Start(kLink);
  }
  ~Victim() {
    CloseSockets(sockets.client);
    CloseSockets(sockets.server);
    close(bell);
  }
  ShmOptions Options() {
    ShmOptions options;
    options.host = &PlainDevice();
    options.post_setup = [this](SetupThread::Job job) { setup.Post(std::move(job)); };
    return options;
  }
  bool Until(absl::FunctionRef<bool()> done) {
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(5);
    while (!done() && std::chrono::steady_clock::now() < end) fabric.Poll(events);
    return done();
  }
  std::string DownWith() {
    REQUIRE(Until([&] { return !events.down[kLink].empty(); }));
    return events.down[kLink][0].ToString();
  }
  Error Read(const fabric::RemoteKey& key, uint64_t offset, size_t bytes) {
    const ReadSlot slot{++reads, 1};
    into.resize(bytes);
    const fabric::LocalPiece piece{&PlainDevice(), into.data(), bytes};
    fabric.Read(slot, kLink, kReader, key, offset, {&piece, 1});
    REQUIRE(Until([&] { return !events.reads[slot.word()].empty(); }));
    return events.reads[slot.word()][0];
  }
  // As an honest owner does, but with any descriptor and numbers.
  void Export(uint64_t buffer, uint64_t offset, uint64_t bytes, int fd) {
    struct {
      uint32_t magic = 0x53425645, reserved = 0;
      uint64_t buffer, offset, bytes;
    } message{.buffer = buffer, .offset = offset, .bytes = bytes};
    iovec part{&message, sizeof message};
    alignas(cmsghdr) char room[CMSG_SPACE(sizeof fd)] = {};
    msghdr header{};
    header.msg_iov = &part;
    header.msg_iovlen = 1;
    if (fd >= 0) {
      header.msg_control = room;
      header.msg_controllen = sizeof room;
      cmsghdr* c = CMSG_FIRSTHDR(&header);
      c->cmsg_level = SOL_SOCKET;
      c->cmsg_type = SCM_RIGHTS;
      c->cmsg_len = CMSG_LEN(sizeof fd);
      memcpy(CMSG_DATA(c), &fd, sizeof fd);
    }
    REQUIRE(sendmsg(peer.channel->fd(), &header, 0) == sizeof message);
  }

  SetupThread setup;
  ShmFabric fabric;
  int bell;
  Link peer;
  fabric::Offer offer;
  SocketPair sockets;
  Recorder events;
  std::vector<std::byte> into;
  uint32_t reads = 0;
};

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

TEST_CASE("an offer of another's memory does not prove the mapping", "[shm][hostile]") {
  Victim victim(false);
  Victim stranger(false);
  std::swap(victim.offer.fds, stranger.offer.fds);
  const absl::Status status =
      victim.fabric.Complete(kLink, std::move(victim.offer), victim.sockets.client);
  REQUIRE(absl::IsFailedPrecondition(status));
  for (const int fd : stranger.offer.fds) close(fd);
}

TEST_CASE("exports that could shrink, lie about their size or have no memory are refused",
          "[shm][hostile]") {
  constexpr uint64_t kBuffer = 77;
  auto read = [](uint64_t offset, uint64_t bytes, int fd) {
    Victim victim;
    fabric::RemoteKey key;
    victim.peer.leases.Add(kBuffer, 0, 4096, key);
    victim.Export(kBuffer, offset, bytes, fd);
    if (fd >= 0) close(fd);
    return victim.Read(key, 0, 64);
  };
  auto sealed = [](size_t bytes) {
    const int fd = memfd_create("slab", MFD_ALLOW_SEALING);
    REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
    REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
    return fd;
  };
  REQUIRE(read(0, 8192, sealed(8192)) == Error::kOk);
  const int unsealed = memfd_create("unsealed", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(unsealed, 8192) == 0);
  REQUIRE(read(0, 8192, unsealed) == Error::kUnsupported);
  REQUIRE(read(0, 8193, sealed(8192)) == Error::kUnsupported);
  REQUIRE(read(4096, 8192, sealed(8192)) == Error::kUnsupported);
  REQUIRE(read(~uint64_t{0} - 4095, 8192, sealed(8192)) == Error::kUnsupported);
  REQUIRE(read(100, 4096, sealed(8192)) == Error::kUnsupported);
  REQUIRE(read(0, 0, sealed(8192)) == Error::kUnsupported);
  REQUIRE(read(0, 8192, -1) == Error::kUnsupported);
}

TEST_CASE("a lease table that lies is not followed outside the mapping", "[shm][hostile]") {
  constexpr uint64_t kBuffer = 78;
  Victim victim;
  const int fd = memfd_create("slab", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, 8192) == 0);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
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
