// READs of device memory that cannot be mapped here: the owner is asked for parts of it, copies
// them to stages that are mapped, and they are copied from there; several at a time, so that both
// sides copy at once.
#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/read_answer.h"
#include "rpc/fabric/shm/transfers.h"

namespace verbena::fabric::shm {
namespace {

using Stage = AskedStage::State;

}  // namespace

void Transfers::BeginStaged(uint32_t index) {
  if (!TakesPath(index, Path::kPinnedStaging)) return;
  Transfer& t = all_[index];
  t.state = Transfers::State::kCopying;
  t.staged = true;
  t.imported = false;
  ++t.link->copies;
  // In the order in which they get stages that are free: those that one is enough for, then as they
  // came. A large one that waited for later ones might wait for ever.
  const auto larger = std::find_if(staged_.begin(), staged_.end(), [this](uint32_t other) {
    return all_[other].bytes > kStageBytes;
  });
  staged_.insert(t.bytes <= kStageBytes ? larger : staged_.end(), index);
}

void Transfers::FreeStage(Link& link, uint32_t stage) { link.stages[stage].state = Stage::kFree; }

bool Transfers::Answered(const Link& link, uint32_t stage) {
  return link.theirs.desk().answers[stage].sequence.load(std::memory_order_acquire) ==
         link.stages[stage].sequence;
}

bool Transfers::StagesToDo() const {
  return std::any_of(staged_.begin(), staged_.end(), [this](uint32_t index) {
    const Transfer& t = all_[index];
    const Link& link = *t.link;
    if (t.error != Error::kOk || PeerIsGone(link)) return true;
    for (uint32_t i = 0; i < kStages; ++i) {
      const AskedStage& stage = link.stages[i];
      const bool mine = stage.transfer == index;
      if (stage.state == Stage::kFree && t.asked < t.bytes) return true;
      if (stage.state == Stage::kCopying && mine) return true;
      // Else a job maps it, and says so.
      if (stage.state == Stage::kAnswered && mine && (!t.stages_wanted || t.imported)) return true;
      const bool waits = (stage.state == Stage::kAsked && mine) ||
                         (stage.state == Stage::kAbandoned && t.asked < t.bytes);
      if (waits && Answered(link, i)) return true;
    }
    return false;
  });
}

void Transfers::AskStages(uint32_t index) {
  Transfer& t = all_[index];
  Link& link = *t.link;
  Desk& desk = link.mine.desk();
  bool any = false;
  for (uint32_t i = 0; i < kStages && t.asked < t.bytes; ++i) {
    AskedStage& stage = link.stages[i];
    if (stage.state == Stage::kAbandoned && Answered(link, i)) FreeStage(link, i);
    if (stage.state != Stage::kFree) continue;
    const size_t bytes = std::min<size_t>(t.bytes - t.asked, kStageBytes);
    stage = {Stage::kAsked, index, ++link.stage_sequence, t.asked, bytes, 0};
    StageRequest& request = desk.requests[i];
    request.word.store(t.key.words[0], std::memory_order_relaxed);
    request.entry.store(t.key.words[1], std::memory_order_relaxed);
    request.offset.store(t.offset + t.asked, std::memory_order_relaxed);
    request.bytes.store(bytes, std::memory_order_relaxed);
    request.sequence.store(stage.sequence, std::memory_order_release);
    t.asked += bytes;
    any = true;
  }
  if (!any) return;
  desk.asked.fetch_add(1, std::memory_order_release);
  owner_.Wake(link);
}

bool Transfers::StepStaged(uint32_t index) {
  Transfer& t = all_[index];
  Link& link = *t.link;
  if (t.error == Error::kOk && PeerIsGone(link)) t.error = Error::kLinkDown;
  bool left = false;
  for (uint32_t i = 0; i < kStages; ++i) {
    AskedStage& stage = link.stages[i];
    if (stage.transfer != index) continue;
    if (stage.state == Stage::kAsked && Answered(link, i)) {
      stage.state = Stage::kAnswered;
      link.active = true;
    }
    if (stage.state == Stage::kAnswered) {
      const uint64_t error = link.theirs.desk().answers[i].error.load(std::memory_order_relaxed);
      if (!OwnerMayAnswer(error)) {
        if (t.error == Error::kOk) t.error = Error::kLinkDown;
        owner_.OnViolation(link, absl::InvalidArgumentError(absl::StrCat(
                                     "shm: a stage was answered with status ", error)));
      }
      if (error != 0 && t.error == Error::kOk) {
        const bool live = LeaseStillLive(link.theirs.leases(), t.key);
        t.error = live ? static_cast<Error>(error) : WhyLost(link);
      }
      if (t.error != Error::kOk || CopyStage(index, i)) {
        if (stage.state == Stage::kAnswered) FreeStage(link, i);
      }
    }
    if (t.error != Error::kOk && stage.state == Stage::kAsked) stage.state = Stage::kAbandoned;
    left |= stage.state != Stage::kFree && stage.state != Stage::kAbandoned;
  }
  if (t.error == Error::kOk && t.asked < t.bytes) {
    AskStages(index);
    return false;
  }
  if (!left) Finish(index);
  return !left;
}

bool Transfers::HasStages(Transfer& t, uint64_t buffer) {
  Link& link = *t.link;
  const Import* const import = FindImport(link, buffer, *t.into);
  t.import = import == nullptr ? nullptr : import->memory;
  if (t.import != nullptr && Ready(t, 0, 0)) return true;
  if (!t.stages_wanted) {
    t.stages_wanted = true;
    t.import_round = link.import_round + 1;
    owner_.WantImport(link, {buffer, t.into, t.import, 0, 0});
  } else if (t.imported) {
    t.error = Error::kUnsupported;
  }
  return false;
}

bool Transfers::CopyStage(uint32_t index, uint32_t i) {
  Transfer& t = all_[index];
  AskedStage& stage = t.link->stages[i];
  const StageAnswer& answer = t.link->theirs.desk().answers[i];
  const uint64_t start = answer.start.load(std::memory_order_relaxed);
  if (!HasStages(t, answer.buffer.load(std::memory_order_relaxed))) return false;
  const memory::Mapping& mapping = t.import->mapping();
  const bool inside = mapping.device->host_accessible() && start <= mapping.bytes &&
                      stage.bytes <= mapping.bytes - start;
  if (!inside) {
    t.error = Error::kOutOfBounds;
    return true;
  }
  return CopyFromStage(index, i, mapping.base + start);
}

bool Transfers::CopyFromStage(uint32_t index, uint32_t i, const std::byte* from) {
  Transfer& t = all_[index];
  AskedStage& stage = t.link->stages[i];
  const uint64_t tag = (uint64_t{i} + 1) << 32 | index;
  bool full = false;
  for (memory::Device* const device : DevicesOf(t)) {
    const Parts parts = PartsOn(t, device, stage.offset, stage.bytes, from);
    if (parts.pieces.empty()) continue;
    full = !CopyBy(*device, tag, parts.pieces, parts.order);
    if (full) break;
    ++stage.copies;
  }
  if (full && stage.copies == 0) return false;  // the next step has room
  if (full) t.error = Error::kNoMemory;
  if (stage.copies > 0) stage.state = Stage::kCopying;
  return true;
}

void Transfers::OnStageCopied(uint32_t index, uint32_t i, bool ok) {
  Transfer& t = all_[index];
  if (!ok && t.error == Error::kOk) t.error = Error::kFault;
  AskedStage& stage = t.link->stages[i];
  if (--stage.copies == 0) FreeStage(*t.link, i);
}

}  // namespace verbena::fabric::shm
