#include "rpc/gpu/copy_engine.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "rpc/base/log.h"
#include "rpc/gpu/cuda_device.h"

namespace verbena::gpu {
namespace {

// Polls without news after which the driver is asked whether the stream has failed: a fault stops
// it, and then it writes no word. About a millisecond.
constexpr uint32_t kIdlePollsMax = 4096;
constexpr size_t kWordBytes = 64;
// A copy up to here takes 6 to 10 us: polls ask the driver, each for 0.2 us, for so long.
constexpr size_t kSmallBytes = 256 << 10;
// Polls that have asked in vain, after which the stream is to write the word after all: the GPU has
// other work. Some 40 us.
constexpr uint32_t kQueriesMax = 100;

abi::Address AddressOf(const std::byte* pointer) { return reinterpret_cast<abi::Address>(pointer); }

bool IsDevice(Reach reach) { return reach == Reach::kDevice || reach == Reach::kManaged; }

}  // namespace

CudaCopyEngine::~CudaCopyEngine() {
  if (context_ == nullptr) return;
  const Driver& driver = device_.driver();
  while (first_ != next_ && At(next_ - 1).by_event && !Ended(At(next_ - 1))) LookForFault();
  while (!broken_ && (unwritten_ || !Reached(sequence_))) LookForFault();
  const InContext in(driver, context_);
  if (stream_ != nullptr) driver.cuStreamDestroy_v2(stream_);
  if (copied_ != nullptr) driver.cuEventDestroy_v2(copied_);
  if (ended_ != nullptr) driver.cuEventDestroy_v2(ended_);
  for (const auto& [context, event] : events_) driver.cuEventDestroy_v2(event);
  if (word_ != nullptr) driver.cuMemFreeHost(word_);
  if (stage_memory_ != nullptr) driver.cuMemFreeHost(stage_memory_);
}

bool CudaCopyEngine::Start() {
  if (stream_ != nullptr) return true;
  const absl::StatusOr<abi::Context> context = device_.context().Get();
  if (!context.ok()) {
    VERBENA_LOG(kWarning, "no copies: ", context.status().message());
    return false;
  }
  context_ = *context;
  const InContext in(device_.driver(), context_);
  const abi::Result r = in.result() == abi::kSuccess ? MakeStream() : in.result();
  if (r == abi::kSuccess) return true;
  VERBENA_LOG(kWarning, "no copies: ", device_.Note(r, "making a stream").message());
  return false;
}

// Goes on where a call that failed left off.
abi::Result CudaCopyEngine::MakeStream() {
  const Driver& driver = device_.driver();
  if (word_ == nullptr) {
    void* word = nullptr;
    const abi::Result r = driver.cuMemHostAlloc(&word, kWordBytes, abi::kHostAllocPortable);
    if (r != abi::kSuccess) return r;
    word_ = static_cast<uint32_t*>(word);
    *word_ = 0;
  }
  abi::Result r = driver.cuMemHostGetDevicePointer_v2(&word_address_, word_, 0);
  if (r != abi::kSuccess) return r;
  if (copied_ == nullptr) r = driver.cuEventCreate(&copied_, abi::kEventDisableTiming);
  if (r != abi::kSuccess) return r;
  if (ended_ == nullptr) r = driver.cuEventCreate(&ended_, abi::kEventDisableTiming);
  if (r != abi::kSuccess) return r;
  return driver.cuStreamCreateWithPriority(&stream_, abi::kStreamNonBlocking, 0);
}

bool CudaCopyEngine::StartStages() {
  if (stage_memory_ != nullptr) return true;
  void* memory = nullptr;
  if (device_.driver().cuMemHostAlloc(&memory, kStages * kStageBytes, abi::kHostAllocPortable) !=
      abi::kSuccess) {
    return false;
  }
  stage_memory_ = static_cast<std::byte*>(memory);
  for (size_t i = 0; i < kStages; ++i) stages_[i].memory = stage_memory_ + i * kStageBytes;
  return true;
}

bool CudaCopyEngine::Copy(uint64_t tag, absl::Span<const memory::CopyPiece> pieces,
                          memory::StreamOrder order) {
  if (last_ - first_ == limits::kCopiesInFlightMax) return false;
  Queued& entry = At(last_++);
  entry.tag = tag;
  entry.pieces.assign(pieces.begin(), pieces.end());
  entry.order = order;
  entry.issued = false;
  entry.by_event = false;
  entry.stages = 0;
  entry.sequence = sequence_;
  entry.ok = !broken_ && Start();
  if (next_ + 1 != last_) return true;
  size_t no_budget = 0;  // only what the CPU has no part in
  IssueFront(no_budget, [] { return false; });
  return true;
}

bool CudaCopyEngine::Ordered(uint64_t tag) const {
  for (uint64_t i = first_; i != last_; ++i) {
    const Queued& entry = ring_[i % limits::kCopiesInFlightMax];
    if (entry.tag != tag) continue;
    return entry.issued && entry.ok && !broken_ && entry.order.stream != nullptr;
  }
  return false;
}

bool CudaCopyEngine::Reached(uint32_t sequence) const {
  if (word_ == nullptr) return true;
  const uint32_t word = std::atomic_ref<uint32_t>(*word_).load(std::memory_order_acquire);
  return static_cast<int32_t>(word - sequence) >= 0;
}

bool CudaCopyEngine::Poll(size_t budget_bytes, absl::FunctionRef<bool()> yield,
                          absl::FunctionRef<void(uint64_t, bool)> done) {
  size_t budget = budget_bytes;
  bool any = false;
  for (;;) {
    EmptyStages(budget);
    if (next_ == last_ || !IssueFront(budget, yield)) break;
  }
  while (first_ != next_) {
    Queued& entry = At(first_);
    if (!Ended(entry)) break;
    const uint64_t tag = entry.tag;
    const bool ok = entry.ok && !broken_;
    ++first_;
    any = true;
    done(tag, ok);
  }
  if (any) idle_polls_ = 0;
  const bool ask = unwritten_ || ++idle_polls_ >= kIdlePollsMax;
  if (first_ != last_ && ask) LookForFault();
  return first_ != last_;
}

bool CudaCopyEngine::IssueFront(size_t& budget, absl::FunctionRef<bool()> yield) {
  Queued& entry = At(next_);
  if (entry.ok && !broken_ && !entry.pieces.empty()) {
    const InContext in(device_.driver(), context_);
    Check(entry, in.result(), "entering its context");
    if (entry.ok && !begun_) Begin(entry);
    while (entry.ok && piece_ < entry.pieces.size()) {
      if (IssueBatch(entry)) continue;
      if (!IssuePiece(entry, budget)) return false;
      if (piece_offset_ != 0 && yield()) return false;
    }
    End(entry);
  }
  entry.issued = true;
  begun_ = false;
  piece_ = piece_offset_ = 0;
  ++next_;
  return true;
}

void CudaCopyEngine::Begin(Queued& entry) {
  begun_ = true;
  unbatched_ = 0;
  if (entry.order.stream != nullptr) WaitFor(entry);
}

void CudaCopyEngine::End(Queued& entry) {
  if (entry.ok && entry.order.stream != nullptr) Signal(entry);
  if (IsSmallAndAlone(entry)) {
    const abi::Result r = device_.driver().cuEventRecord(ended_, stream_);
    Check(entry, r, "an event after a copy");
    entry.by_event = r == abi::kSuccess;
    queries_ = 0;
    if (entry.by_event) return;
  }
  Write(entry);  // also after an error: what was issued before it has to end first
}

bool CudaCopyEngine::IsSmallAndAlone(const Queued& entry) const {
  if (!entry.ok || next_ != first_ || entry.stages > 0 || entry.order.stream != nullptr) {
    return false;
  }
  size_t bytes = 0;
  for (const memory::CopyPiece& piece : entry.pieces) {
    if (__builtin_add_overflow(bytes, piece.bytes, &bytes)) return false;
  }
  return bytes <= kSmallBytes;
}

bool CudaCopyEngine::Ended(Queued& entry) {
  if (broken_) return true;
  if (!entry.by_event) return entry.stages == 0 && Reached(entry.sequence);
  const InContext in(device_.driver(), context_);
  if (IsOver(device_.driver().cuEventQuery(ended_))) return true;
  if (++queries_ == kQueriesMax) {
    entry.by_event = false;
    Write(entry);
  }
  return false;
}

bool CudaCopyEngine::IsOver(abi::Result result) {
  if (result == abi::kSuccess || result == abi::kNotReady) return result == abi::kSuccess;
  if (IsOfCapture(result)) return false;  // it could not be asked
  VERBENA_LOG(kWarning, device_.Note(result, "copies").message());
  return broken_ = true;
}

bool CudaCopyEngine::IssuePiece(Queued& entry, size_t& budget) {
  const Driver& driver = device_.driver();
  const memory::CopyPiece& piece = entry.pieces[piece_];
  if (piece.bytes == 0) {
    ++piece_;
    return true;
  }
  if (piece_offset_ == 0) {
    const Reach to = to_.Of(driver, AddressOf(piece.to), piece.bytes);
    const Reach from = from_.Of(driver, AddressOf(piece.from), piece.bytes);
    if (to != Reach::kPageable && from != Reach::kPageable) {
      Check(entry,
            driver.cuMemcpyAsync(AddressOf(piece.to), AddressOf(piece.from), piece.bytes, stream_),
            "a copy");
      ++piece_;
      return true;
    }
    if ((!IsDevice(to) && !IsDevice(from)) || piece.to == nullptr || piece.from == nullptr ||
        !StartStages()) {
      Check(entry, abi::kInvalidValue, "a copy that neither begins nor ends on a GPU");
      return true;
    }
  }
  const bool to_device = IsDevice(ReachOf(driver, AddressOf(piece.to), piece.bytes));
  return IssueStage(entry, piece, to_device, budget);
}

bool CudaCopyEngine::IssueStage(Queued& entry, const memory::CopyPiece& piece, bool to_device,
                                size_t& budget) {
  if (last_stage_ - first_stage_ == kStages || (to_device && budget == 0)) return false;
  const Driver& driver = device_.driver();
  Stage& stage = stages_[last_stage_ % kStages];
  stage.bytes = std::min(piece.bytes - piece_offset_, kStageBytes);
  std::byte* const to = piece.to + piece_offset_;
  const std::byte* const from = piece.from + piece_offset_;
  if (to_device) {
    std::memcpy(stage.memory, from, stage.bytes);
    budget -= std::min(budget, stage.bytes);
    Check(entry, driver.cuMemcpyAsync(AddressOf(to), AddressOf(stage.memory), stage.bytes, stream_),
          "a copy from a stage");
    stage.to = nullptr;
  } else {
    Check(entry,
          driver.cuMemcpyAsync(AddressOf(stage.memory), AddressOf(from), stage.bytes, stream_),
          "a copy to a stage");
    stage.to = to;
    ++entry.stages;
  }
  stage.entry = next_;
  Write(entry);
  stage.sequence = entry.sequence;
  ++last_stage_;
  piece_offset_ += stage.bytes;
  if (piece_offset_ == piece.bytes) ++piece_, piece_offset_ = 0;
  return true;
}

void CudaCopyEngine::EmptyStages(size_t& budget) {
  while (first_stage_ != last_stage_) {
    Stage& stage = stages_[first_stage_ % kStages];
    if (!broken_ && !Reached(stage.sequence)) return;
    if (stage.to != nullptr) {
      if (budget == 0) return;
      if (!broken_) std::memcpy(stage.to, stage.memory, stage.bytes);
      budget -= std::min(budget, stage.bytes);
      --At(stage.entry).stages;
    }
    ++first_stage_;
    idle_polls_ = 0;
  }
}

void CudaCopyEngine::Write(Queued& entry) {
  const abi::Result r =
      device_.driver().cuStreamWriteValue32_v2(stream_, word_address_, sequence_ + 1, 0);
  entry.sequence = sequence_ + 1;
  unwritten_ = r != abi::kSuccess;
  if (!unwritten_) ++sequence_;
  // Else what was issued has to end all the same: the next word says so, or LookForFault.
  Check(entry, r, "a word after a copy");
}

void CudaCopyEngine::WaitFor(Queued& entry) {
  const Driver& driver = device_.driver();
  const auto theirs = static_cast<abi::Stream>(entry.order.stream);
  abi::Context context = context_;
  abi::Result r = MayQueue(driver, theirs);
  if (r == abi::kSuccess && !IsDefault(theirs)) r = driver.cuStreamGetCtx(theirs, &context);
  if (r == abi::kSuccess) {
    const abi::Event event = EventOf(context);
    r = event == nullptr ? abi::kInvalidContext : driver.cuEventRecord(event, theirs);
    if (r == abi::kSuccess) r = driver.cuStreamWaitEvent(stream_, event, 0);
    if (r != abi::kSuccess) ForgetEvent(context);
  }
  Check(entry, r, "waiting for a stream");
}

void CudaCopyEngine::Signal(Queued& entry) {
  const Driver& driver = device_.driver();
  abi::Result r = driver.cuEventRecord(copied_, stream_);
  if (r == abi::kSuccess) {
    r = driver.cuStreamWaitEvent(static_cast<abi::Stream>(entry.order.stream), copied_, 0);
  }
  Check(entry, r, "ordering a copy before a stream");
}

abi::Event CudaCopyEngine::EventOf(abi::Context context) {
  for (const auto& [known, event] : events_) {
    if (known == context) return event;
  }
  const InContext in(device_.driver(), context);
  abi::Event event = nullptr;
  if (in.result() != abi::kSuccess ||
      device_.driver().cuEventCreate(&event, abi::kEventDisableTiming) != abi::kSuccess) {
    return nullptr;
  }
  events_.emplace_back(context, event);
  return event;
}

// The context may have been destroyed, and its event with it, and another be where it was.
void CudaCopyEngine::ForgetEvent(abi::Context context) {
  for (auto it = events_.begin(); it != events_.end(); ++it) {
    if (it->first != context) continue;
    device_.driver().cuEventDestroy_v2(it->second);
    events_.erase(it);
    return;
  }
}

void CudaCopyEngine::Check(Queued& entry, abi::Result result, absl::string_view what) {
  if (result == abi::kSuccess) return;
  const absl::Status status = device_.Note(result, what);
  VERBENA_LOG(kWarning, status.message());
  entry.ok = false;
  broken_ = broken_ || IsSticky(result);
}

void CudaCopyEngine::LookForFault() {
  idle_polls_ = 0;
  if (stream_ == nullptr || broken_) return;
  const InContext in(device_.driver(), context_);
  const bool over = IsOver(device_.driver().cuStreamQuery(stream_));
  if (!over || broken_ || !std::exchange(unwritten_, false)) return;
  std::atomic_ref<uint32_t>(*word_).store(++sequence_, std::memory_order_release);
}

}  // namespace verbena::gpu
