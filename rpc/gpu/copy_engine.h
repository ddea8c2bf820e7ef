#pragma once
// CudaCopyEngine: copies of one reactor that begin or end on a GPU, on a stream of its own, in
// order. Nobody waits for the GPU: the stream writes a number into page-locked memory after each
// copy, and Poll reads it, so that a poll costs no call of the driver's. A small copy that has the
// stream for itself, and is over in microseconds, has an event instead, which Poll asks for: that
// takes 0.7 us less of the CPU, and is seen 0.6 us sooner.
//
// Host memory that is not page-locked goes through a few page-locked stages that the CPU fills or
// empties within Poll's budget, pipelined with the copies; the driver would block the caller for as
// long as it takes.
#include <array>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "rpc/base/limits.h"
#include "rpc/gpu/driver.h"
#include "rpc/gpu/pointer.h"
#include "rpc/memory/device.h"

namespace verbena::gpu {

class CudaDevice;

class CudaCopyEngine final : public memory::CopyEngine {
 public:
  explicit CudaCopyEngine(CudaDevice& device) : device_(device) {}
  // Waits for what is queued.
  ~CudaCopyEngine() override;

  // The first call makes the stream, which takes the GPU's context if nobody has. `order.stream`, a
  // CUstream of any GPU: the copy starts when what is queued there now has ended, and what is
  // queued there from now on starts when the copy has ended, also before Poll reports it.
  bool Copy(uint64_t tag, absl::Span<const memory::CopyPiece> pieces,
            memory::StreamOrder order) override;
  bool Poll(size_t budget_bytes, absl::FunctionRef<bool()> yield,
            absl::FunctionRef<void(uint64_t tag, bool ok)> done) override;
  bool Ordered(uint64_t tag) const override;

 private:
  struct Queued {
    uint64_t tag = 0;
    std::vector<memory::CopyPiece> pieces;  // keeps its capacity
    memory::StreamOrder order;
    bool issued = false;  // all of it
    bool ok = true;
    bool by_event = false;  // `ended_`, not the word, says that it has ended
    uint32_t sequence = 0;  // the stream's word once it has ended
    uint32_t stages = 0;    // of it that the CPU has to empty
  };
  struct Stage {
    std::byte* memory = nullptr;  // page-locked
    std::byte* to = nullptr;      // where the CPU takes its bytes; null: it filled it
    size_t bytes = 0;
    uint32_t sequence = 0;
    uint64_t entry = 0;
  };
  static constexpr size_t kStages = 4;
  // Large enough that issuing a copy (2 us) is little beside it (5 us at 50 GB/s) and the CPU's
  // part (25 us); small enough that a poll yields soon.
  static constexpr size_t kStageBytes = 256 << 10;

  bool Start();
  abi::Result MakeStream();
  bool StartStages();
  Queued& At(uint64_t index) { return ring_[index % limits::kCopiesInFlightMax]; }
  bool Reached(uint32_t sequence) const;
  // Issues what can be issued of the next entry; false: it waits for a stage, or for the CPU.
  bool IssueFront(size_t& budget, absl::FunctionRef<bool()> yield);
  // Many small pieces within what the GPU reaches, by one kernel. False: not the next ones.
  bool IssueBatch(Queued& entry);
  // One piece, or a stage of it. False: it waits.
  bool IssuePiece(Queued& entry, size_t& budget);
  bool IssueStage(Queued& entry, const memory::CopyPiece& piece, bool to_device, size_t& budget);
  void EmptyStages(size_t& budget);
  void Begin(Queued& entry);
  void End(Queued& entry);
  void WaitFor(Queued& entry);
  void Signal(Queued& entry);
  void Write(Queued& entry);
  bool IsSmallAndAlone(const Queued& entry) const;
  bool Ended(Queued& entry);
  // By what an event or the stream says; an error breaks the engine, and is the end too.
  bool IsOver(abi::Result result);
  abi::Event EventOf(abi::Context context);
  void ForgetEvent(abi::Context context);
  void Check(Queued& entry, abi::Result result, absl::string_view what);
  void LookForFault();

  CudaDevice& device_;
  abi::Context context_ = nullptr;
  abi::Stream stream_ = nullptr;
  abi::Event copied_ = nullptr;                              // what a user's stream waits for
  abi::Event ended_ = nullptr;                               // after a small copy
  uint32_t queries_ = 0;                                     // of that
  std::vector<std::pair<abi::Context, abi::Event>> events_;  // to record on users' streams
  uint32_t* word_ = nullptr;                                 // page-locked; the stream writes it
  abi::Address word_address_ = 0;
  uint32_t sequence_ = 0;   // the last that was given
  bool unwritten_ = false;  // the driver refused the word after what was issued last
  bool broken_ = false;     // the stream will write nothing any more

  std::array<Queued, limits::kCopiesInFlightMax> ring_;
  uint64_t first_ = 0, last_ = 0;  // [first_, last_) of the ring are queued
  uint64_t next_ = 0;              // the next to issue
  bool begun_ = false;             // of that one
  size_t piece_ = 0;
  size_t piece_offset_ = 0;
  size_t unbatched_ = 0;  // pieces below it go one by one
  LastReach to_, from_;   // of the pieces' ends
  std::byte* stage_memory_ = nullptr;
  std::array<Stage, kStages> stages_;
  uint64_t first_stage_ = 0, last_stage_ = 0;
  uint32_t idle_polls_ = 0;
};

}  // namespace verbena::gpu
