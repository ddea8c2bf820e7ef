// READs: this side's end of bulk lanes on which it reads. What is posted at the NIC is bounded
// (read_pace.h); lanes take turns.
#include <algorithm>
#include <array>
#include <utility>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

// Turns are short, so that a lane with small READs does not wait for long behind one with large
// ones; and long enough for small ones to share a doorbell.
constexpr size_t kReadsPerTurn = 4;

Error ErrorOf(ibv_wc_status status) {
  switch (status) {
    case IBV_WC_SUCCESS:
      return Error::kOk;
    case IBV_WC_REM_ACCESS_ERR:
      return Error::kLeaseLost;
    case IBV_WC_LOC_PROT_ERR:
    case IBV_WC_LOC_ACCESS_ERR:
      return Error::kFault;
    default:
      return Error::kLaneDown;
  }
}

}  // namespace

ReaderEnd* VerbsFabric::UpReader(LinkId id, Lane lane) {
  for (const bool again : {false, true}) {
    if (again && !TakeNews()) return nullptr;  // the lane may have been completed just now
    const Link* const link = Find(id);
    if (link == nullptr || lane.index >= limits::kLanesMax) return nullptr;
    ReaderEnd* const end = link->readers[lane.index];
    if (end != nullptr && end->lane == lane) return end->up() ? end : nullptr;
  }
  return nullptr;
}

void VerbsFabric::Read(ReadSlot slot, LinkId id, Lane lane, const RemoteKey& key, uint64_t offset,
                       absl::Span<const LocalPiece> pieces) {
  const Link* const link = Find(id);
  if (link == nullptr || link->closing) return events_.ReadDone(slot, Error::kLinkDown);
  uint64_t bytes = 0;
  for (const LocalPiece& piece : pieces) bytes += piece.bytes;
  VERBENA_CHECK(bytes <= traits_.read_chunk_bytes, "a READ of ", bytes, " bytes");
  const std::optional<KeyFields> fields = ReadKey(key);
  if (!fields || fields->lane_generation != lane.generation) {
    return events_.ReadDone(slot, Error::kLeaseLost);
  }
  if (offset > fields->bytes || bytes > fields->bytes - offset) {
    return events_.ReadDone(slot, Error::kOutOfBounds);
  }
  ReaderEnd* const end = UpReader(id, lane);
  if (end == nullptr) return events_.ReadDone(slot, Error::kLaneDown);
  if (bytes == 0) return events_.ReadDone(slot, Error::kOk);
  const ReadId read_id = reads_.Add();
  ReadRecord* const read = reads_.Find(read_id);
  if (read == nullptr) return events_.ReadDone(slot, Error::kNoMemory);
  read->slot = slot;
  read->end = end->number;
  read->address = fields->address + offset;
  read->rkey = fields->rkey;
  read->bytes = bytes;
  read->source = fields->source;
  read->required = pieces[0].path;
  const bool host = std::all_of(pieces.begin(), pieces.end(), [](const LocalPiece& piece) {
    return piece.bytes == 0 || piece.device->host_accessible();
  });
  if (!host) return ReadIntoDevice(read_id, *read, pieces);
  if (!TakesPath(read_id, *read, ::verbena::Path::kRdmaRead)) return;
  std::vector<LocalPiece> unknown;
  PlacePieces(*read, pieces, unknown);
  if (!unknown.empty()) return RegisterPieces(read_id, std::move(unknown));
  end->waiting.push_back(read_id);
  ListReader(*end);
}

// Whether its bytes may come so; else it has ended before any has moved. `here`: what this end's
// part of the way makes of it.
bool VerbsFabric::TakesPath(ReadId id, ReadRecord& read, ::verbena::Path here) {
  read.path = here;
  if (read.source == Source::kCopy) read.path = ::verbena::Path::kPinnedStaging;
  if (read.source == Source::kDevice && here == ::verbena::Path::kRdmaRead) {
    read.path = ::verbena::Path::kGdrRead;
  }
  if (read.required == ::verbena::Path::kNone || read.required == read.path) return true;
  read.error = Error::kUnsupported;
  FinishRead(id, read);
  return false;
}

// Those in memory that is registered get its key; `unknown` are the others.
void VerbsFabric::PlacePieces(ReadRecord& read, absl::Span<const LocalPiece> pieces,
                              std::vector<LocalPiece>& unknown) {
  for (const LocalPiece& piece : pieces) {
    if (piece.bytes == 0) continue;
    Domain::Pin pin = domain_->Find(piece.data, piece.bytes);
    const auto address = reinterpret_cast<uint64_t>(piece.data);
    const uint32_t lkey = pin ? pin.mr()->lkey : 0;
    // What is not registered yet is found by its whole, and is posted in one.
    const uint64_t most = pin ? read_pace_.work_bytes() : piece.bytes;
    for (uint64_t at = 0; at < piece.bytes; at += most) {
      const auto part = static_cast<uint32_t>(std::min<uint64_t>(most, piece.bytes - at));
      read.pieces.push_back({address + at, part, lkey});
    }
    if (pin) {
      read.pins.push_back(std::move(pin));
    } else {
      unknown.push_back(piece);
    }
  }
}

// Registered for this READ alone: what the library does not know may be freed right after it.
void VerbsFabric::RegisterPieces(ReadId id, std::vector<LocalPiece> unknown) {
  reads_.Find(id)->registering = true;
  PostJob([this, id, domain = domain_, unknown = std::move(unknown)]() -> Inbox::News {
    absl::StatusOr<std::vector<ibv_mr*>> made = std::vector<ibv_mr*>();
    for (const LocalPiece& piece : unknown) {
      absl::StatusOr<ibv_mr*> mr = domain->RegisterRange(piece.data, piece.bytes, false);
      if (!mr.ok()) {
        for (ibv_mr* const other : *made) Domain::Deregister(other);
        made = mr.status();
        break;
      }
      made->push_back(*mr);
    }
    return
        [this, id, made = std::move(made)]() mutable { OnPiecesRegistered(id, std::move(made)); };
  });
}

void VerbsFabric::OnPiecesRegistered(ReadId id, absl::StatusOr<std::vector<ibv_mr*>> made) {
  ReadRecord& read = *reads_.Find(id);
  read.registering = false;
  if (read.answered) {
    if (made.ok()) read.own = *std::move(made);
    return FinishRead(id, read);
  }
  if (made.ok()) {
    read.own = *std::move(made);
    size_t next = 0;
    for (ibv_sge& piece : read.pieces) {
      const uint64_t at = piece.addr;
      if (next < read.own.size() && at == reinterpret_cast<uint64_t>(read.own[next]->addr) &&
          piece.length == read.own[next]->length) {
        piece.lkey = read.own[next++]->lkey;
      }
    }
    VERBENA_CHECK(next == read.own.size(), next, " of ", read.own.size(), " pieces found");
  } else {
    if (bad_destinations_.Due()) {
      VERBENA_LOG(kWarning, "verbs: the destination of a READ: ", made.status().message(),
                  bad_destinations_.KeptBack());
    }
    read.error = absl::IsInvalidArgument(made.status()) ? Error::kFault : Error::kNoMemory;
  }
  auto* const end = static_cast<ReaderEnd*>(ends_.Find(read.end));
  if (read.error == Error::kOk && (end == nullptr || !end->up())) read.error = Error::kLaneDown;
  if (read.error != Error::kOk) return FinishRead(id, read);
  end->waiting.push_back(id);
  ListReader(*end);
}

// What the next work request takes: at least one piece.
size_t VerbsFabric::PiecesOfWork(const ReadRecord& read, uint32_t& bytes) const {
  const size_t most = std::min<size_t>(sizes_.sge, read.pieces.size() - read.next_piece);
  bytes = read.pieces[read.next_piece].length;
  size_t count = 1;
  while (count < most) {
    const uint32_t more = read.pieces[read.next_piece + count].length;
    if (bytes + more > read_pace_.work_bytes()) break;
    bytes += more;
    ++count;
  }
  return count;
}

void VerbsFabric::ListReader(ReaderEnd& end) {
  if (end.listed || end.waiting.empty() || !end.up() || end.room() == 0) return;
  end.listed = true;
  readers_.push_back(end.number);
}

void VerbsFabric::PostReads() {
  while (!readers_.empty() && !read_pace_.full()) {
    auto* const end = static_cast<ReaderEnd*>(ends_.Find(readers_.front()));
    readers_.pop_front();
    if (end == nullptr || !end->listed) continue;
    end->listed = false;
    if (end->up()) PostReadsOf(*end);
    ListReader(*end);
  }
}

// A turn: some READs, or as much of one as there is room for, with one doorbell.
void VerbsFabric::PostReadsOf(ReaderEnd& end) {
  std::array<ibv_send_wr, ReaderEnd::kRing> works;
  uint32_t count = 0;
  const int64_t now_ns = SteadyNs();
  LinkCounters& counters = Find(end.link)->counters;
  for (size_t reads = 0; reads < kReadsPerTurn && !end.waiting.empty(); ++reads) {
    const ReadId id = end.waiting.front();
    ReadRecord& read = *reads_.Find(id);
    if (count == end.room()) break;
    while (read.next_piece < read.pieces.size() && count < end.room() && !read_pace_.full()) {
      uint32_t bytes = 0;
      const size_t pieces = PiecesOfWork(read, bytes);
      ibv_send_wr& work = works[count];
      work = {};
      work.wr_id = WorkId{WorkKind::kRead, end.number, end.posted + count}.word();
      work.sg_list = &read.pieces[read.next_piece];
      work.num_sge = static_cast<int>(pieces);
      work.opcode = IBV_WR_RDMA_READ;
      work.send_flags = IBV_SEND_SIGNALED;
      work.wr.rdma.remote_addr = read.address;
      work.wr.rdma.rkey = read.rkey;
      if (count > 0) works[count - 1].next = &work;
      end.works[(end.posted + count) % ReaderEnd::kRing] = {id, bytes};
      read_pace_.OnPosted(bytes, now_ns);
      read.address += bytes;
      read.next_piece += pieces;
      ++read.works_left;
      ++count;
    }
    if (read.next_piece < read.pieces.size()) break;
    end.waiting.pop_front();
    counters.read_bytes += read.bytes;
  }
  if (count == 0) return;
  ibv_send_wr* refused = nullptr;
  const int result = ibv_post_send(end.qp(), works.data(), &refused);
  const uint32_t taken = result == 0          ? count
                         : refused == nullptr ? 0
                                              : static_cast<uint32_t>(refused - works.data());
  end.posted += taken;
  bulk_due_ += taken;
  counters.reads += taken;
  ++counters.read_doorbells;
  if (result == 0) return;
  // What was refused never completes by itself.
  for (uint32_t i = taken; i < count; ++i) {
    const auto [id, bytes] = end.works[(end.posted + i - taken) % ReaderEnd::kRing];
    read_pace_.OnDone(bytes, false);
    ReadRecord& read = *reads_.Find(id);
    read.error = Error::kLaneDown;
    const bool waits = std::find(end.waiting.begin(), end.waiting.end(), id) != end.waiting.end();
    if (--read.works_left == 0 && !waits) FinishRead(id, read);
  }
  FailEnd(end);
}

void VerbsFabric::OnReadDone(ReaderEnd& end, const ibv_wc& completion) {
  const WorkId work = WorkId::FromWord(completion.wr_id);
  if (end.outstanding() == 0 || work.number != end.completed) {
    ++counters_.stale_completions;
    return;
  }
  const auto [id, bytes] = end.works[end.completed % ReaderEnd::kRing];
  ++end.completed;
  read_pace_.OnDone(bytes, completion.status == IBV_WC_SUCCESS);
  ReadRecord& read = *reads_.Find(id);
  --read.works_left;
  const bool fails = completion.status != IBV_WC_SUCCESS;
  if (fails && read.error == Error::kOk) {
    read.error = Find(end.link)->closing ? Error::kLinkDown : ErrorOf(completion.status);
  }
  // Its queue pair is being destroyed without having been drained: nobody would wait for a copy.
  const bool copied_later = read.stage != Stages::kNone || read.flush != nullptr;
  if (end.state == EndState::kDestroying && copied_later && read.error == Error::kOk) {
    read.error = Find(end.link)->closing ? Error::kLinkDown : Error::kLaneDown;
  }
  // What is not wholly posted is among those that wait, and ends with them.
  const bool posted = read.next_piece == read.pieces.size() || !end.up();
  if (read.works_left == 0 && posted) FinishRead(id, read);
  if (fails && end.up()) {
    VERBENA_LOG(kDebug, "verbs: a READ failed: ", ibv_wc_status_str(completion.status));
    FailEnd(end);
  }
  ListReader(end);
}

void VerbsFabric::FinishRead(ReadId id, ReadRecord& read) {
  VERBENA_DCHECK(read.works_left == 0 && !read.registering);
  const bool staged = read.stage != Stages::kNone;
  const bool read_well = read.error == Error::kOk && !read.answered && !read.copying;
  if (staged && read_well) return CopyOut(id, read);
  if (read.flush != nullptr && read_well) return Flush(id, read);
  if (!read.own.empty()) {
    PostJob([own = std::move(read.own)]() -> Inbox::News {
      for (ibv_mr* const mr : own) Domain::Deregister(mr);
      return [] {};
    });
  }
  if (!read.answered) events_.ReadDone(read.slot, read.error, read.path);
  if (staged) ReturnStage(read);
  reads_.Remove(id);
}

// Its lane goes down: what is not posted ends now, the rest when it is flushed.
void VerbsFabric::DropWaiting(ReaderEnd& end, Error error) {
  // First those without a stage: what the others give back is not for them.
  reads_.ForEach([&](ReadId id, ReadRecord& read) {
    if (!read.parked || read.end != end.number) return;
    read.error = error;
    FinishRead(id, read);
  });
  for (const ReadId id : std::exchange(end.waiting, {})) {
    ReadRecord& read = *reads_.Find(id);
    if (read.error == Error::kOk) read.error = error;
    if (read.works_left == 0) FinishRead(id, read);
  }
  // Nobody writes to a destination that is only being registered.
  reads_.ForEach([&](ReadId, ReadRecord& read) {
    if (!read.registering || read.answered || read.end != end.number) return;
    read.answered = true;
    events_.ReadDone(read.slot, error);
  });
}

void VerbsFabric::BreakLane(LinkId id, Lane lane) {
  TakeNews();
  Link* const link = Find(id);
  if (link == nullptr || lane.index >= limits::kLanesMax) return;
  End* end = nullptr;
  if (lane.role == LaneRole::kReader) {
    ReaderEnd* const reader = link->readers[lane.index];
    if (reader != nullptr && reader->lane == lane) end = reader;
  } else {
    OwnerEnd* const owner = link->owners[lane.index];
    if (owner != nullptr && owner->lane == lane) end = owner;
  }
  if (end != nullptr && end->up()) FailEnd(*end);
}

}  // namespace verbena::fabric::verbs
