#pragma once
// Copies from another process's private memory with process_vm_readv, a slice at a time: what
// reaches memory that its user allocated and no descriptor names.
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "rpc/fabric/fabric.h"

namespace verbena::fabric::shm {

class ProcessCopy {
 public:
  // The pieces and the descriptor stay the caller's and valid until it has ended.
  void Begin(int pid, int pidfd, uint64_t address, absl::Span<const LocalPiece> pieces);
  // Copies at most `budget` bytes (reduced by what was copied), looking at `yield` between slices.
  // True: ended, with `error`: kFault when the peer has no such memory, kLinkDown when it is gone
  // (its number may be another's by now).
  bool Step(size_t& budget, absl::FunctionRef<bool()> yield, Error& error);

 private:
  int pid_ = 0;
  int pidfd_ = -1;
  uint64_t address_ = 0;
  absl::Span<const LocalPiece> pieces_;
  size_t piece_ = 0;
  size_t at_ = 0;  // within pieces_[piece_]
};

}  // namespace verbena::fabric::shm
