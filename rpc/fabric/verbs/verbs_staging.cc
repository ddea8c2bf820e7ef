// Memory of devices that the NIC does not reach. What is READ for it comes into stages and is
// copied from there by the device, several chunks at the same time; what is leased of it is copied
// to host memory, and that is leased.
#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/verbs_fabric.h"
#include "rpc/memory/device_regions.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/pool.h"

namespace verbena::fabric::verbs {
namespace {

// The copies' jobs name a READ by its place in the fabric's own table.
ReadSlot JobName(ReadId id) { return {id.index, id.generation}; }
ReadId FromJobName(ReadSlot slot) { return {slot.index, slot.generation}; }

}  // namespace

// ---- the reader's end

void VerbsFabric::StageRead(ReadId id, ReadRecord& read, absl::Span<const LocalPiece> pieces) {
  if (!TakesPath(id, read, ::verbena::Path::kPinnedStaging)) return;
  read.pieces.clear();  // of what could not be placed wholly
  read.pins.clear();
  read.staged.assign(pieces.begin(), pieces.end());
  read.parked = true;
  want_stage_.push_back(id);
  GiveStages();
}

// To those that wait longest. Where the pools are not registered, the stage is, for each READ.
void VerbsFabric::GiveStages() {
  while (!want_stage_.empty()) {
    const ReadId id = want_stage_.front();
    ReadRecord* const read = reads_.Find(id);
    if (read == nullptr) {  // it has ended
      want_stage_.pop_front();
      continue;
    }
    if (stages_ == nullptr) stages_ = std::make_shared<Stages>(traits_.read_chunk_bytes);
    const uint32_t stage = stages_->Take(read->bytes);
    if (stage == Stages::kNone) return;
    want_stage_.pop_front();
    read->parked = false;
    read->stages = stages_;
    read->stage = stage;
    const LocalPiece piece{&memory::HostDevice(), stages_->At(stage), read->bytes};
    std::vector<LocalPiece> unknown;
    PlacePieces(*read, {&piece, 1}, unknown);
    if (!unknown.empty()) {
      RegisterPieces(id, std::move(unknown));
      continue;
    }
    auto& end = static_cast<ReaderEnd&>(*ends_.Find(read->end));
    end.waiting.push_back(id);
    ListReader(end);
  }
}

// The last gives all of them back: what they lie in may be wanted elsewhere, and the next may find
// room in the pools where these did not.
void VerbsFabric::ReturnStage(ReadRecord& read) {
  read.stages->Give(std::exchange(read.stage, Stages::kNone));
  read.stages.reset();
  GiveStages();
  if (stages_ != nullptr && stages_->unused()) stages_.reset();
}

// Its bytes are in its stage.
void VerbsFabric::CopyOut(ReadId id, ReadRecord& read) {
  read.copying = true;
  ++static_cast<ReaderEnd&>(*ends_.Find(read.end)).copying;
  if (!uncopied_.empty() || !BeginCopyOut(id, read)) uncopied_.push_back(id);
}

// False: its device has no room now.
bool VerbsFabric::BeginCopyOut(ReadId id, ReadRecord& read) {
  absl::InlinedVector<memory::CopyPiece, 4> pieces;
  const std::byte* from = read.stages->At(read.stage);
  memory::Device* device = nullptr;
  for (const LocalPiece& piece : read.staged) {
    if (!piece.device->host_accessible()) device = piece.device;
    pieces.push_back({piece.data, from, piece.bytes});
    from += piece.bytes;
  }
  DeviceCopies::Job job;
  job.link = ends_.Find(read.end)->link;
  job.lane = {0, LaneRole::kReader, 0};
  job.read = JobName(id);
  return copies_.Start(*device, pieces, job);
}

void VerbsFabric::OnCopiedOut(ReadId id, bool ok) {
  ReadRecord& read = *reads_.Find(id);
  auto& end = static_cast<ReaderEnd&>(*ends_.Find(read.end));  // it outlives the copy
  if (!ok) read.error = Error::kFault;
  FinishRead(id, read);
  if (--end.copying == 0 && end.flushed) OnDrained(end);
}

// ---- the owner's end

void VerbsFabric::CopyLease(LeaseSlot slot, LeaseRecord& record, Link& link,
                            const memory::RegionRef& region) {
  record.source = Source::kCopy;
  if (record.bytes >
      options_.copied_bytes_max - std::min(copied_bytes_, options_.copied_bytes_max)) {
    if (leases_refused_.Due()) {
      VERBENA_LOG(kWarning, "verbs: no lease of ", record.bytes,
                  " bytes of device memory: the NIC ",
                  "does not reach it, and of host memory for copies ", copied_bytes_, " bytes of ",
                  options_.copied_bytes_max, " are in use (VERBENA_VERBS_COPIED_BYTES_MAX)",
                  leases_refused_.KeptBack());
    }
    record.refusal = Error::kNoMemory;
    return EndedNow(slot, record);
  }
  record.state = LeaseState::kCopying;
  record.copy = std::make_unique<LeaseCopy>(region, record.data, record.bytes, copied_bytes_);
  ++link.jobs;
  memory::Block block = memory::TryAllocateBlock(record.bytes);
  if (block) return OnLeaseBlock(slot, std::move(block));
  jobs_.fetch_add(1, std::memory_order_relaxed);
  memory::PostToGrowth([this, inbox = inbox_, slot, bytes = record.bytes] {
    inbox->Push([this, slot, made = memory::AllocateBlock(bytes)]() mutable {
      OnLeaseBlock(slot, std::move(made));
    });
    jobs_.fetch_sub(1, std::memory_order_release);
  });
}

void VerbsFabric::OnLeaseBlock(LeaseSlot slot, absl::StatusOr<memory::Block> block) {
  LeaseRecord& record = *RecordIf(slot);  // its link waits for it
  LeaseCopy& copy = *record.copy;
  if (!block.ok()) {
    if (leases_refused_.Due()) {
      VERBENA_LOG(kWarning, "verbs: no lease of device memory: ", block.status().message(),
                  leases_refused_.KeptBack());
    }
    copy.error = Error::kNoMemory;
  } else {
    copy.block = *std::move(block);
    if (!memory::StillThere(*copy.region)) copy.error = Error::kFault;
  }
  lease_copies_.push_back(slot);  // PollCopies begins
}

void VerbsFabric::PumpLeaseCopy(LeaseSlot slot, LeaseRecord& record) {
  LeaseCopy& copy = *record.copy;
  const End* const end = ends_.Find(record.end);
  if (record.end_wanted || end == nullptr || !end->up()) {
    if (copy.error == Error::kOk) copy.error = Error::kLaneDown;
  }
  while (copy.error == Error::kOk && copy.asked < copy.size &&
         copy.under_way < LeaseCopy::kPiecesAhead) {
    const size_t bytes = std::min(LeaseCopy::kPieceBytes, copy.size - copy.asked);
    const memory::CopyPiece piece{copy.block.data() + copy.asked, copy.source + copy.asked, bytes};
    DeviceCopies::Job job;
    job.link = record.link;
    job.lane = {0, LaneRole::kOwner, 0};
    job.lease = slot;
    if (!copies_.Start(copy.region->device(), {&piece, 1}, job)) return;
    copy.asked += bytes;
    ++copy.under_way;
  }
}

// Nothing copies any more.
void VerbsFabric::EndLeaseCopy(LeaseSlot slot, LeaseRecord& record) {
  LeaseCopy& copy = *record.copy;
  Link& link = *Find(record.link);
  auto* const end = static_cast<OwnerEnd*>(ends_.Find(record.end));
  const bool lane_up = end != nullptr && end->up();
  if (copy.error == Error::kOk && lane_up) {
    record.data = copy.block.data();
    PlaceLease(slot, record, link, *end);
  } else {
    const Error down = link.closing ? Error::kLinkDown : Error::kLaneDown;
    record.refusal = lane_up && copy.error != Error::kLaneDown ? copy.error : down;
    EndedNow(slot, record);
  }
  --link.jobs;
  AdvanceDown(link);
}

// ---- both

bool VerbsFabric::PollCopies() {
  while (!uncopied_.empty()) {
    const ReadId id = uncopied_.front();
    if (!BeginCopyOut(id, *reads_.Find(id))) break;
    uncopied_.pop_front();
  }
  for (const LeaseSlot slot : lease_copies_) PumpLeaseCopy(slot, *RecordIf(slot));
  bool any = copies_.Poll([this](const DeviceCopies::Job& job, bool ok) {
    if (job.lane.role == LaneRole::kReader) return OnCopiedOut(FromJobName(job.read), ok);
    LeaseCopy& copy = *RecordIf(job.lease)->copy;
    --copy.under_way;
    if (!ok && copy.error == Error::kOk) copy.error = Error::kFault;
  });
  std::vector<LeaseSlot> ended;
  std::erase_if(lease_copies_, [&](LeaseSlot slot) {
    const LeaseCopy& copy = *RecordIf(slot)->copy;
    const bool over = copy.error != Error::kOk || copy.asked == copy.size;
    if (copy.under_way > 0 || !over) return false;
    ended.push_back(slot);
    return true;
  });
  for (const LeaseSlot slot : ended) EndLeaseCopy(slot, *RecordIf(slot));
  return any || !ended.empty();
}

}  // namespace verbena::fabric::verbs
