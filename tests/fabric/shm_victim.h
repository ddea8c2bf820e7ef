#pragma once
// A shm fabric with one link, and the peer of that: a bare shm::Link, whose memory and side socket
// the test writes.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "rpc/fabric/shm/link.h"
#include "rpc/fabric/shm/shm_fabric.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/setup_thread.h"

namespace verbena::contract {

using fabric::shm::Link;
using fabric::shm::ShmFabric;
using fabric::shm::ShmOptions;

inline constexpr LinkId kLink{0};
inline constexpr Lane kReader{0, LaneRole::kReader, 1};

struct Victim {
  explicit Victim(bool start = true, memory::Device& host = PlainDevice())
      : fabric(Options(host)), bell(eventfd(0, EFD_NONBLOCK)), peer(kLink) {
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
  ShmOptions Options(memory::Device& host) {
    ShmOptions options;
    options.host = &host;
    options.post_setup = [this](SetupThread::Job job) {
      ++jobs;
      setup.Post(std::move(job));
    };
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
    SendAside({0x53425645, 0, buffer, offset, bytes}, fd);
  }
  // On a device that this process has not.
  void ExportElsewhere(uint64_t buffer, int fd) {
    constexpr auto kDescriptor = static_cast<uint32_t>(memory::ExportWay::kVmmDescriptor) << 8;
    SendAside(
        {0x53425645, kDescriptor | static_cast<uint32_t>(Device::Kind::kCuda), buffer, 0, 4096},
        fd);
  }
  void Withdraw(uint64_t buffer) { SendAside({0x53425657, 0, buffer, 0, 0}, -1); }
  struct SideMessage {
    uint32_t magic, device;  // kind, and way << 8
    uint64_t buffer, offset, bytes;
    std::byte hardware_and_handle[80] = {};
  };
  void SendAside(SideMessage message, int fd) {
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
    REQUIRE(sendmsg(peer.channel->fd(), &header, MSG_DONTWAIT | MSG_NOSIGNAL) == sizeof message);
  }

  std::atomic<int> jobs{0};  // posted to the setup thread
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

inline int SealedMemfd(uint64_t bytes) {
  const int fd = memfd_create("slab", MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  REQUIRE(fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  return fd;
}

}  // namespace verbena::contract
