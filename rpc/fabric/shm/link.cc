#include "rpc/fabric/shm/link.h"

#include <fcntl.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"

namespace verbena::fabric::shm {

Link::~Link() {
  if (peer_bell >= 0) close(peer_bell);
}

absl::StatusOr<Offer> Link::Prepare(int bell_fd) {
  auto segment = Segment::Create();
  if (!segment.ok()) return segment.status();
  const int bell = fcntl(bell_fd, F_DUPFD_CLOEXEC, 0);
  if (bell < 0) {
    return absl::ResourceExhaustedError(absl::StrCat("shm: the bell: ", strerror(errno)));
  }
  mine = *std::move(segment);
  nonce_ = std::make_unique<Nonce>(RandomNonce());
  OfferBlob blob;
  blob.ring_lines = kRingLines;
  blob.leases_max = kLeasesMax;
  blob.nonce = *nonce_;
  blob.nonce_address = reinterpret_cast<uint64_t>(nonce_.get());
  memcpy(mine.control().nonce, nonce_->data(), nonce_->size());
  out.Attach(mine);
  leases.Attach(mine.leases());
  Offer offer;
  offer.blob = Encode(blob);
  offer.fds = {mine.TakeFd(), bell};
  return offer;
}

absl::Status Link::Complete(Offer& peer, Sockets& sockets) {
  std::vector<int> fds = std::move(peer.fds);
  peer.fds.clear();
  absl::Status status;
  if (fds.size() != 2) {
    status = absl::InvalidArgumentError(
        absl::StrCat("shm: an offer with ", fds.size(), " descriptors, needs 2"));
  }
  const auto offer = Decode(peer.blob);
  if (status.ok()) status = offer.status();
  if (status.ok()) status = CheckBell(fds[1]);
  if (!status.ok()) {
    for (const int fd : fds) close(fd);
    return status;
  }
  peer_bell = fds[1];
  auto segment = Segment::Open(fds[0]);
  if (!segment.ok()) return segment.status();
  theirs = *std::move(segment);
  in.Attach(theirs);
  if (status = ProveMapping(*offer); !status.ok()) return status;
  channel = std::make_shared<SideChannel>();
  if (status = channel->Adopt(sockets.side); !status.ok()) return status;
  const absl::Status by_process = ProveProcess(*offer);
  process_way = by_process.ok();
  mine.control().reads_process.store(process_way, std::memory_order_relaxed);
  read_ways = process_way
                  ? "mapping, process_vm_readv"
                  : absl::StrCat("mapping; process_vm_readv is off: ", by_process.message());
  return absl::OkStatus();
}

absl::Status Link::ProveMapping(const OfferBlob& offer) const {
  if (memcmp(theirs.control().nonce, offer.nonce.data(), offer.nonce.size()) == 0) {
    return absl::OkStatus();
  }
  return absl::FailedPreconditionError(
      "shm: the mapped memory is not the one that the peer offered");
}

absl::Status Link::ProveProcess(const OfferBlob& offer) const {
  if (channel->peer_pid() <= 0) {
    return absl::FailedPreconditionError("the peer is in another PID namespace");
  }
  if (channel->peer_pidfd() < 0) return absl::FailedPreconditionError("no pidfd of the peer");
  Nonce got{};
  const iovec local{got.data(), got.size()};
  const iovec remote{reinterpret_cast<void*>(offer.nonce_address), got.size()};
  const ssize_t n = process_vm_readv(channel->peer_pid(), &local, 1, &remote, 1, 0);
  if (n < 0) return absl::FailedPreconditionError(strerror(errno));
  if (n != static_cast<ssize_t>(got.size()) || got != offer.nonce) {
    return absl::FailedPreconditionError("it reads other bytes than the peer's");
  }
  return absl::OkStatus();
}

}  // namespace verbena::fabric::shm
