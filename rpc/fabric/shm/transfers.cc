#include "rpc/fabric/shm/transfers.h"

#include <algorithm>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric::shm {
namespace {

// A READ up to here goes before larger ones: it takes about 20 us.
constexpr size_t kSmallBytes = 256 * 1024;
// Copies begun at once. One more than one keeps the engine busy across the boundary; each adds its
// time to how long a lane takes to break.
constexpr uint32_t kBegunMax = 2;
// From here on a READ has its range faulted in first. Smaller ones fault what they need, so that
// links that only prove themselves, or move little, hold no page tables for it.
constexpr size_t kPopulateBytes = 64 * 1024;

// What of a peer's private memory is READ at once by way of this process's: a chunk of host memory.
constexpr size_t kBounceBytesMax = 8 << 20;

}  // namespace

const Import* Transfers::FindImport(const Link& link, uint64_t buffer, const memory::Device& into) {
  for (const Import& import : link.imports) {
    if (import.buffer != buffer) continue;
    if (import.memory->mapping().device->host_accessible() || import.into == &into) return &import;
  }
  return nullptr;
}

bool Transfers::PeerIsGone(const Link& link) {
  return link.closing || link.hung_up ||
         link.theirs.control().closed.load(std::memory_order_relaxed) != 0;
}

void Transfers::Add(ReadSlot slot, Link& link, Lane lane, const RemoteKey& key, uint64_t offset,
                    absl::Span<const LocalPiece> pieces) {
  if (free_.empty()) {
    free_.push_back(static_cast<uint32_t>(all_.size()));
    all_.emplace_back();
  }
  const uint32_t index = free_.back();
  free_.pop_back();
  Transfer& t = all_[index];
  t.slot = slot;
  t.link = &link;
  t.lane = lane;
  t.key = key;
  t.offset = offset;
  t.pieces.assign(pieces.begin(), pieces.end());
  t.bytes = 0;
  t.into = nullptr;
  for (const LocalPiece& piece : pieces) {
    t.bytes += piece.bytes;
    if (t.into == nullptr || t.into->host_accessible()) t.into = piece.device;
  }
  t.error = Error::kOk;
  t.path = Path::kNone;
  t.outstanding = 0;
  t.by_process = t.staged = t.ordered = t.stages_wanted = false;
  t.imported = false;
  t.hold = kNoHold;
  t.by = nullptr;
  t.asked = 0;
  Queue(index);
}

void Transfers::Queue(uint32_t index) {
  all_[index].state = State::kQueued;
  (all_[index].bytes <= kSmallBytes ? small_ : large_).push_back(index);
}

void Transfers::OnImports(Link& link, bool all) {
  for (uint32_t i = 0; i < all_.size(); ++i) {
    Transfer& t = all_[i];
    if (t.link != &link || (t.state != State::kWaiting && !t.stages_wanted)) continue;
    if (t.import_round > link.import_round) continue;  // the next job is the one
    t.imported = all;
    t.stages_wanted = t.stages_wanted && all;
    if (t.state == State::kWaiting) Queue(i);
  }
}

void Transfers::Cancel(Link& link, const Lane* lane, Error error) {
  for (uint32_t i = 0; i < all_.size(); ++i) {
    Transfer& t = all_[i];
    if (t.link != &link || (lane != nullptr && !(t.lane == *lane))) continue;
    if (t.staged && t.state == State::kCopying && t.error == Error::kOk) t.error = error;
    if (t.state != State::kQueued && t.state != State::kWaiting) continue;
    std::erase(small_, i);
    std::erase(large_, i);
    t.error = error;
    Finish(i);
  }
}

bool Transfers::Copying(const Link& link, Lane lane) const {
  return std::any_of(all_.begin(), all_.end(), [&](const Transfer& t) {
    return t.state == State::kCopying && !t.ordered && t.link == &link && t.lane == lane;
  });
}

bool Transfers::Work(size_t budget, absl::FunctionRef<bool()> yield) {
  bool ended = BeginSome();
  for (size_t i = 0; i < staged_.size();) {
    const bool left_it = StepStaged(staged_[i]);  // then the next one is at its place
    ended |= left_it;
    i += left_it ? 0 : 1;
  }
  for (size_t i = 0; i < by_process_.size() && budget > 0;) {
    Transfer& t = all_[by_process_[i]];
    if (!t.process.Step(budget, yield, t.error)) break;
    const uint32_t index = by_process_[i];
    by_process_.erase(by_process_.begin() + static_cast<ptrdiff_t>(i));
    if (t.error == Error::kOk && t.bounced.data != nullptr) {
      CopyToPieces(index, t.bounced.data, nullptr);
    } else {
      Finish(index);
    }
    ended = true;
  }
  for (Engine& engine : engines_) {
    if (engine.busy == 0) continue;
    engine.copies->Poll(budget, yield, [&](uint64_t tag, bool ok) {
      --engine.busy;
      const auto index = static_cast<uint32_t>(tag);
      if (tag >> 32 != 0) return OnStageCopied(index, static_cast<uint32_t>(tag >> 32) - 1, ok);
      Transfer& t = all_[index];
      if (!ok) t.error = Error::kFault;
      if (--t.outstanding > 0) return;
      Finish(index);
      ended = true;
    });
  }
  if (!ordering_.empty()) TellOrdered();
  return ended;
}

bool Transfers::BeginSome() {
  bool ended = false;
  while (begun_ < kBegunMax) {
    std::deque<uint32_t>& queue = small_.empty() ? large_ : small_;
    if (queue.empty()) break;
    const uint32_t index = queue.front();
    queue.pop_front();
    Begin(index);
    ended |= all_[index].state == State::kFree;
  }
  return ended;
}

void Transfers::Begin(uint32_t index) {
  Transfer& t = all_[index];
  Link& link = *t.link;
  const LeaseView view = CheckLease(link.theirs.leases(), t.key, t.offset, t.bytes);
  t.error = view.error == Error::kLeaseLost ? WhyLost(link) : view.error;
  if (t.error != Error::kOk || t.bytes == 0) return Finish(index);
  if (view.buffer != 0) {
    if (view.buffer == kStagedBuffer) return BeginStaged(index);
    // What was tried once in vain is not tried for each READ.
    if (FindImport(link, view.buffer, *t.into) == nullptr && BeginUnmapped(index, view.buffer)) {
      return;
    }
    if (!HasImport(t, view)) return;
    if (t.import == nullptr && BeginUnmapped(index, view.buffer)) return;
    const size_t mapped = t.import == nullptr ? 0 : t.import->mapping().bytes;
    t.error = t.import == nullptr ? Error::kUnsupported : Error::kOutOfBounds;
    if (view.start > mapped || t.offset > mapped - view.start ||
        t.bytes > mapped - view.start - t.offset) {
      return Finish(index);
    }
    t.error = Error::kOk;
    return BeginMapped(index, t.import->mapping(), view.start + t.offset);
  }
  if (link.process_way) return BeginProcess(index, view.start + t.offset);
  t.error = Error::kUnsupported;
  Finish(index);
}

void Transfers::BeginProcess(uint32_t index, uint64_t address) {
  Transfer& t = all_[index];
  const bool into_host = std::all_of(t.pieces.begin(), t.pieces.end(), [](const LocalPiece& p) {
    return p.device->host_accessible();
  });
  if (!TakesPath(index, into_host ? Path::kProcess : Path::kPinnedStaging)) return;
  absl::Span<const LocalPiece> pieces = t.pieces;
  if (!into_host) {
    // A peer that took host memory for a device's has more of it READ at once.
    if (t.bytes > kBounceBytesMax) {
      t.error = Error::kUnsupported;
      return Finish(index);
    }
    t.bounce = memory::TryAllocateBlock(t.bytes);
    // Not page-locked, so copied once more: a process that never had host memory of the pools.
    if (!t.bounce) t.heap.reset(new std::byte[t.bytes]);
    t.bounced = {&memory::HostDevice(), t.bounce ? t.bounce.data() : t.heap.get(), t.bytes};
    pieces = {&t.bounced, 1};
  }
  t.state = State::kCopying;
  t.by_process = true;
  ++begun_;
  ++t.link->copies;
  t.process.Begin(t.link->channel->peer_pid(), t.link->channel->peer_pidfd(), address, pieces);
  by_process_.push_back(index);
}

bool Transfers::HasImport(Transfer& t, const LeaseView& view) {
  Link& link = *t.link;
  const Import* const import = FindImport(link, view.buffer, *t.into);
  if (import != nullptr) t.import = import->memory;
  const uint64_t offset = view.start + t.offset;  // not checked yet: may be anything
  const uint64_t populate = t.bytes >= kPopulateBytes ? t.bytes : 0;
  if (t.imported || (import != nullptr && Ready(t, offset, populate))) return true;
  // The owner sent the descriptor before it announced the lease; a job that starts from now on
  // finds it.
  t.state = State::kWaiting;
  t.import_round = link.import_round + 1;
  owner_.WantImport(link,
                    {view.buffer, t.into, std::exchange(t.import, nullptr), offset, populate});
  return false;
}

bool Transfers::Ready(const Transfer& t, uint64_t offset, uint64_t populate) const {
  if (populate != 0 && !t.import->populated(offset, populate)) return false;
  return t.into->host_accessible() || t.import->lock_tried();
}

bool Transfers::TakesPath(uint32_t index, Path path, bool ordered) {
  Transfer& t = all_[index];
  t.path = path;
  const LocalPiece& first = t.pieces.front();
  const bool required = first.path == Path::kNone || first.path == path;
  if (required && (ordered || first.order.stream == nullptr)) return true;
  t.error = Error::kUnsupported;
  Finish(index);
  return false;
}

bool Transfers::BeginUnmapped(uint32_t index, uint64_t buffer) {
  Transfer& t = all_[index];
  const std::vector<Unmapped>& unmapped = t.link->unmapped;
  const auto it = std::find_if(unmapped.begin(), unmapped.end(), [&](const Unmapped& one) {
    return one.buffer == buffer && one.into == t.into;
  });
  if (it == unmapped.end()) return false;
  if (it->of_host) {
    t.error = Error::kNoMemory;
    Finish(index);
  } else {
    BeginStaged(index);
  }
  return true;
}

void Transfers::BeginMapped(uint32_t index, const memory::Mapping& mapping, uint64_t offset) {
  Transfer& t = all_[index];
  const std::byte* const from = mapping.base + offset;
  memory::Device* const mapped = mapping.device->host_accessible() ? nullptr : mapping.device;
  const LocalPiece& first = t.pieces.front();
  // A destination is one tensor's: its pieces ask for the same path, and the same order.
  VERBENA_DCHECK(std::all_of(t.pieces.begin(), t.pieces.end(), [&first](const LocalPiece& p) {
    return p.device != first.device ||
           (p.path == first.path && p.order.stream == first.order.stream);
  }));
  const memory::Device& by = mapped == nullptr ? *first.device : *mapped;
  const bool devices = mapped != nullptr && !t.into->host_accessible();
  if (!TakesPath(index, by.PathOf({first.data, from, first.bytes}, mapping.path), devices)) return;
  if (first.order.stream != nullptr) t.error = TakeHold(t);
  if (t.error != Error::kOk) return Finish(index);
  t.state = State::kCopying;
  ++begun_;
  ++t.link->copies;
  if (t.hold != kNoHold) ordering_.push_back(index);
  CopyToPieces(index, from, mapped);
}

Transfers::Parts Transfers::PartsOn(const Transfer& t, const memory::Device* device,
                                    uint64_t offset, uint64_t bytes, const std::byte* from) {
  Parts parts;
  uint64_t at = 0;
  for (const LocalPiece& piece : t.pieces) {
    const uint64_t begin = std::max(at, offset);
    const uint64_t end = std::min<uint64_t>(at + piece.bytes, offset + bytes);
    const bool there = device == nullptr || piece.device == device;
    if (there && begin < end) {
      parts.pieces.push_back({piece.data + (begin - at), from + (begin - offset), end - begin});
      if (parts.order.stream == nullptr) parts.order = piece.order;
    }
    at += piece.bytes;
  }
  return parts;
}

Transfers::Devices Transfers::DevicesOf(const Transfer& t) {
  Devices devices;
  for (const LocalPiece& piece : t.pieces) {
    const bool known = std::find(devices.begin(), devices.end(), piece.device) != devices.end();
    if (!known) devices.push_back(piece.device);
  }
  return devices;
}

void Transfers::CopyToPieces(uint32_t index, const std::byte* from, memory::Device* mapped) {
  Transfer& t = all_[index];
  const auto copy = [&](memory::Device& by, const memory::Device* device) {
    const Parts parts = PartsOn(t, device, 0, t.bytes, from);
    if (CopyBy(by, index, parts.pieces, parts.order, &t.by)) {
      ++t.outstanding;
    } else {
      t.error = Error::kNoMemory;
    }
  };
  // Whichever end is not the host's knows how to reach both.
  if (mapped != nullptr) {
    copy(*mapped, nullptr);
  } else {
    for (memory::Device* const device : DevicesOf(t)) copy(*device, device);
  }
  if (t.outstanding == 0) Finish(index);
}

Error Transfers::TakeHold(Transfer& t) {
  Link& link = *t.link;
  Hold* const holds = link.mine.desk().holds;
  for (uint32_t i = 0; i < kHolds; ++i) {
    if (holds[i].word.load(std::memory_order_relaxed) != 0) continue;
    holds[i].entry.store(t.key.words[1], std::memory_order_relaxed);
    holds[i].word.store(t.key.words[0], std::memory_order_release);
    // Pairs with the owner's, who revokes and then looks for holds: one of both sees the other.
    std::atomic_thread_fence(std::memory_order_seq_cst);
    t.hold = i;
    return LeaseStillLive(link.theirs.leases(), t.key) ? Error::kOk : WhyLost(link);
  }
  return Error::kNoMemory;
}

void Transfers::DropHold(Transfer& t) {
  t.link->mine.desk().holds[std::exchange(t.hold, kNoHold)].word.store(0,
                                                                       std::memory_order_release);
  std::atomic_thread_fence(std::memory_order_seq_cst);
  if (!LeaseStillLive(t.link->theirs.leases(), t.key)) owner_.Wake(*t.link);
}

void Transfers::TellOrdered() {
  std::erase_if(ordering_, [this](uint32_t index) {
    Transfer& t = all_[index];
    if (!t.by->Ordered(index)) return false;
    t.ordered = true;
    --begun_;
    ++ordered_;
    owner_.OnTransferOrdered(t.slot, t.path);
    return true;
  });
}

void Transfers::Finish(uint32_t index) {
  Transfer& t = all_[index];
  if (t.state == State::kCopying) {
    if (!t.staged) --(t.ordered ? ordered_ : begun_);
    --t.link->copies;
    if (t.staged) std::erase(staged_, index);
    // What is held is not reused before the hold is dropped, whatever became of the lease.
    if (t.error == Error::kOk && t.hold == kNoHold &&
        !LeaseStillLive(t.link->theirs.leases(), t.key)) {
      t.error = WhyLost(*t.link);
    }
  }
  if (t.hold != kNoHold) {
    std::erase(ordering_, index);
    DropHold(t);
  }
  t.state = State::kFree;
  t.link = nullptr;
  t.import.reset();
  t.bounce.Reset();
  t.heap.reset();
  t.bounced = LocalPiece();
  free_.push_back(index);
  owner_.OnTransferDone(t.slot, t.error, t.path);
}

Transfers::Engine* Transfers::EngineFor(memory::Device& device, void* stream) {
  Engine* idle = nullptr;
  int others = 0;
  for (Engine& engine : engines_) {
    if (engine.device != &device) continue;
    if (engine.stream == stream) return &engine;
    if (engine.stream == nullptr) continue;
    ++others;
    if (engine.busy == 0) idle = &engine;
  }
  if (stream != nullptr && idle != nullptr) {
    idle->stream = stream;
    return idle;
  }
  if (stream != nullptr && others == kStreamsMax) return nullptr;
  engines_.push_back({&device, stream, device.MakeCopyEngine()});
  return &engines_.back();
}

bool Transfers::CopyBy(memory::Device& device, uint64_t tag,
                       absl::Span<const memory::CopyPiece> run, const memory::StreamOrder& order,
                       memory::CopyEngine** by) {
  Engine* const engine = EngineFor(device, order.stream);
  const bool staged = tag >> 32 != 0;  // these come again
  if (engine == nullptr || (staged && engine->busy >= kStagedCopiesMax)) return false;
  if (!engine->copies->Copy(tag, run, order)) return false;
  ++engine->busy;
  if (by != nullptr) *by = engine->copies.get();
  return true;
}

}  // namespace verbena::fabric::shm
