#include "rpc/fabric/shm/process_copy.h"

#include <poll.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>

namespace verbena::fabric::shm {
namespace {

// About 5 us. Lower pays a system call per slice, higher keeps small calls waiting.
constexpr size_t kSliceBytes = 32 * 1024;

bool Alive(int pidfd) {
  pollfd p{pidfd, POLLIN, 0};
  return poll(&p, 1, 0) == 0;
}

}  // namespace

void ProcessCopy::Begin(int pid, int pidfd, uint64_t address, absl::Span<const LocalPiece> pieces) {
  pid_ = pid;
  pidfd_ = pidfd;
  address_ = address;
  pieces_ = pieces;
  piece_ = at_ = 0;
}

bool ProcessCopy::Step(size_t& budget, absl::FunctionRef<bool()> yield, Error& error) {
  while (piece_ < pieces_.size()) {
    const LocalPiece& piece = pieces_[piece_];
    if (at_ == piece.bytes) {
      ++piece_;
      at_ = 0;
      continue;
    }
    if (budget == 0) return false;
    const size_t n = std::min({piece.bytes - at_, kSliceBytes, budget});
    const iovec local{piece.data + at_, n};
    const iovec remote{reinterpret_cast<void*>(address_), n};
    const ssize_t got = process_vm_readv(pid_, &local, 1, &remote, 1, 0);
    if (got <= 0) {
      error = got < 0 && errno == ESRCH ? Error::kLinkDown : Error::kFault;
      return true;
    }
    at_ += static_cast<size_t>(got);
    address_ += static_cast<size_t>(got);
    budget -= std::min(budget, static_cast<size_t>(got));
    if (yield()) break;
  }
  if (piece_ < pieces_.size() && (piece_ + 1 < pieces_.size() || at_ < pieces_[piece_].bytes)) {
    return false;
  }
  error = Alive(pidfd_) ? Error::kOk : Error::kLinkDown;
  return true;
}

}  // namespace verbena::fabric::shm
