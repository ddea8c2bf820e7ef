#include "rpc/fabric/shm/stage_server.h"

#include <algorithm>
#include <utility>

#include "rpc/fabric/shm/link.h"
#include "rpc/memory/device_regions.h"

namespace verbena::fabric::shm {

void StageServer::Lend(Link& link, LeaseSlot slot, uint32_t entry, uint64_t word,
                       const memory::RegionRef& region, const std::byte* data, size_t bytes) {
  lent_.push_back({slot, link.id, entry, word, region, data, bytes});
  link.lends = true;
}

void StageServer::End(LeaseSlot slot) {
  std::erase_if(lent_, [slot](const Lent& lent) { return lent.slot == slot; });
}

void StageServer::EndAll(const Link& link) {
  std::erase_if(lent_, [&link](const Lent& lent) { return lent.link == link.id; });
}

bool StageServer::Busy(LeaseSlot slot) const {
  return std::any_of(jobs_.begin(), jobs_.end(),
                     [slot](const auto& entry) { return entry.second.lease == slot; });
}

bool StageServer::Asked(const Link& link) {
  if (!link.lends) return false;
  const uint64_t asked = link.theirs.desk().asked.load(std::memory_order_acquire);
  if (link.served == nullptr) return asked != 0;
  return asked != link.served->asked || link.served->again;
}

void StageServer::Serve(Link& link) {
  const Desk& desk = link.theirs.desk();
  if (link.served == nullptr) link.served = std::make_unique<ServedStages>();
  ServedStages& served = *link.served;
  served.asked = desk.asked.load(std::memory_order_acquire);
  served.again = false;
  if (!served.shown && served.refusal == Error::kOk) {
    if (std::exchange(served.making, true)) return;
    // The block is there where the peer could not be told of it.
    return served.block ? owner_.ShowStages(link) : owner_.MakeStages(link);
  }
  for (uint32_t stage = 0; stage < kStages; ++stage) {
    const uint64_t sequence = desk.requests[stage].sequence.load(std::memory_order_acquire);
    if (sequence == served.sequences[stage]) continue;
    if (!Begin(link, stage, sequence)) {
      served.again = true;
      return;
    }
    served.sequences[stage] = sequence;
  }
}

void StageServer::OnMade(Link& link, memory::Block block) {
  link.served->block = std::move(block);
  if (link.served->block) return owner_.ShowStages(link);
  Refuse(link, Error::kNoMemory);
}

void StageServer::OnShown(Link& link, bool ok) {
  if (!ok) return Refuse(link, Error::kUnsupported);
  link.served->shown = true;
  Serve(link);
}

void StageServer::Refuse(Link& link, Error error) {
  link.served->refusal = error;
  Serve(link);
  // Whoever asks from now on has them tried for once more.
  link.served->refusal = Error::kOk;
  link.served->making = false;
}

const StageServer::Lent* StageServer::Find(const Link& link, const StageRequest& request,
                                           uint64_t& offset, size_t& bytes, Error& error) const {
  const uint64_t entry = request.entry.load(std::memory_order_relaxed);
  const uint64_t word = request.word.load(std::memory_order_relaxed);
  offset = request.offset.load(std::memory_order_relaxed);
  bytes = request.bytes.load(std::memory_order_relaxed);
  const auto lent = std::find_if(lent_.begin(), lent_.end(), [&](const Lent& l) {
    return l.link == link.id && l.entry == entry && l.word == word;
  });
  error = Error::kUnsupported;
  if (lent == lent_.end()) return nullptr;
  error = Error::kOutOfBounds;
  if (bytes > kStageBytes || offset > lent->bytes || bytes > lent->bytes - offset) return nullptr;
  error = Error::kFault;
  if (!memory::StillThere(*lent->region)) return nullptr;
  error = Error::kOk;
  return &*lent;
}

bool StageServer::Begin(Link& link, uint32_t stage, uint64_t sequence) {
  // A peer that asks again in a stage that is being filled breaks its own READ.
  const bool filling = std::any_of(jobs_.begin(), jobs_.end(), [&](const auto& entry) {
    return entry.second.link == link.id && entry.second.stage == stage;
  });
  if (filling) return false;
  Error error = link.served->refusal;
  uint64_t offset = 0;
  size_t bytes = 0;
  const Lent* const lent =
      error == Error::kOk ? Find(link, link.theirs.desk().requests[stage], offset, bytes, error)
                          : nullptr;
  if (lent == nullptr) {
    Answer(link, stage, sequence, error);
    return true;
  }
  memory::Device& device = lent->region->device();
  std::unique_ptr<memory::CopyEngine>& engine = engines_[&device];
  if (engine == nullptr) engine = device.MakeCopyEngine();
  const memory::CopyPiece piece{link.served->block.data() + stage * kStageBytes,
                                lent->data + offset, bytes};
  if (!engine->Copy(next_, {&piece, 1}, {})) return false;
  jobs_[next_++] = {link.id, link.serial, stage, sequence, lent->slot, lent->region};
  ++link.copies;
  return true;
}

void StageServer::Answer(Link& link, uint32_t stage, uint64_t sequence, Error error) {
  StageAnswer& answer = link.mine.desk().answers[stage];
  answer.error.store(static_cast<uint64_t>(error), std::memory_order_relaxed);
  if (error == Error::kOk) {
    const memory::Block& block = link.served->block;
    const auto at = static_cast<uint64_t>(block.data() - block.region()->base());
    answer.buffer.store(block.region()->buffer_id(), std::memory_order_relaxed);
    answer.start.store(at + stage * kStageBytes, std::memory_order_relaxed);
  }
  answer.sequence.store(sequence, std::memory_order_release);
  owner_.Answered(link);
}

bool StageServer::Work(size_t budget, absl::FunctionRef<bool()> yield) {
  std::vector<std::pair<uint64_t, bool>> ended;
  for (const auto& [device, engine] : engines_) {
    engine->Poll(budget, yield, [&ended](uint64_t tag, bool ok) { ended.emplace_back(tag, ok); });
  }
  for (const auto& [tag, ok] : ended) OnCopied(tag, ok);
  return !ended.empty();
}

void StageServer::OnCopied(uint64_t tag, bool ok) {
  const auto it = jobs_.find(tag);
  const Job job = std::move(it->second);
  jobs_.erase(it);
  Link* const link = owner_.LinkOf(job.link, job.link_serial);
  --link->copies;  // it outlives its copies
  if (!link->closing) Answer(*link, job.stage, job.sequence, ok ? Error::kOk : Error::kFault);
}

}  // namespace verbena::fabric::shm
