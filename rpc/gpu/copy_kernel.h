#pragma once
// CopyKernel: many small copies within what one GPU reaches, by a kernel of the library's. The
// driver takes 2.7 us for a copy, alone or in a batch of its own (cuMemcpyBatchAsync: 1.2 us): a
// thousand blocks of 64 KiB take longer to ask for than to move. One launch moves 256 of them.
//
// The kernel is PTX, which every driver from CUDA 12.1 on compiles when it is loaded.
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "rpc/gpu/driver.h"

namespace verbena::gpu {

class CopyKernel {
 public:
  static constexpr size_t kPiecesMax = 256;
  // As the kernel reads them. `to` and `from` are multiples of kAlignment.
  struct Piece {
    abi::Address to, from;
    uint64_t bytes;
  };
  static constexpr size_t kAlignment = 16;
  struct Batch {
    std::array<Piece, kPiecesMax> pieces;
    uint32_t count = 0;
  };

  // In the GPU's context, current: compiles and loads it, once; blocks for some milliseconds. One
  // thread at a time. Errors as StatusOf: it stays unloaded, and what it would do is done one by
  // one.
  absl::Status Load(const Driver& driver);
  // Any thread.
  bool loaded() const { return function_.load(std::memory_order_acquire) != nullptr; }
  // In the context: queues the copies on `stream`; `batch` may change when this returns. A kernel
  // faults, and its context with it, where it may not read or write: the caller knows that it may.
  abi::Result Launch(const Driver& driver, const Batch& batch, abi::Stream stream) const;

  // The kernel's source, for the assembler.
  static const char* ptx();

 private:
  bool tried_ = false;
  // Lives as long as the context.
  std::atomic<abi::Function> function_{nullptr};
};

}  // namespace verbena::gpu
