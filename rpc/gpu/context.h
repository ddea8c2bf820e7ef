#pragma once
// The primary context of one GPU: the one that the CUDA runtime, and so every framework, uses.
// Taken at the first use and kept, so a process that names a GPU and never touches it pays
// nothing, and a GPU that nobody named gets none.
#include <atomic>
#include <functional>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rpc/gpu/driver.h"

namespace verbena::gpu {

class PrimaryContext {
 public:
  PrimaryContext(const Driver& driver, abi::Ordinal ordinal) : driver_(driver), ordinal_(ordinal) {}
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  // The first call blocks for some 200 ms where nobody else in the process uses the GPU. Any
  // thread. Errors as StatusOf.
  absl::StatusOr<abi::Context> Get();
  // Runs once, when it has been taken, on the thread that did. Before the first Get.
  void set_on_taken(std::function<void()> on_taken) { on_taken_ = std::move(on_taken); }
  // Whether somebody has: then Get does not block.
  bool taken() const { return context_.load(std::memory_order_acquire) != nullptr; }

 private:
  const Driver& driver_;
  const abi::Ordinal ordinal_;
  std::function<void()> on_taken_;
  std::atomic<abi::Context> context_{nullptr};
  absl::Mutex mutex_;  // held while it is taken
};

// Makes a context current on this thread, and what was current again at the end. Meanwhile a graph
// that a thread of the user's captures, as frameworks do, allows this one any call: else one that
// asks how far a stream is, or allocates, fails, and breaks the capture. Where result() is not
// success, the context that was current still is: what makes or moves anything must not be called.
class InContext {
 public:
  InContext(const Driver& driver, abi::Context context)
      : driver_(driver), result_(driver.cuCtxPushCurrent_v2(context)) {
    exchanged_ = driver.cuThreadExchangeStreamCaptureMode(&capture_mode_) == abi::kSuccess;
  }
  ~InContext() {
    if (exchanged_) driver_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    abi::Context popped = nullptr;
    if (result_ == abi::kSuccess) driver_.cuCtxPopCurrent_v2(&popped);
  }
  InContext(const InContext&) = delete;
  InContext& operator=(const InContext&) = delete;
  abi::Result result() const { return result_; }

 private:
  const Driver& driver_;
  const abi::Result result_;
  int capture_mode_ = abi::kCaptureRelaxed;  // then what it was before
  bool exchanged_ = false;
};

// Whether what is queued on a user's stream now is work: while that is captured into a graph, it
// would become part of the graph, and run when that is launched, or never.
inline abi::Result MayQueue(const Driver& driver, abi::Stream stream) {
  int captures = abi::kCapturesNothing;
  const abi::Result r = driver.cuStreamIsCapturing(stream, &captures);
  const bool captured = r == abi::kSuccess && captures != abi::kCapturesNothing;
  return captured ? abi::kStreamCaptureUnsupported : r;
}

}  // namespace verbena::gpu
