#include "rpc/session/transfers.h"

#include <algorithm>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/session/read_failure.h"

namespace verbena::session {
namespace {

// Goes before larger ones: what a small transfer waits for is mostly other people's chunks.
constexpr uint64_t kSmallBytes = 256 << 10;
// How long posted chunks may take after their transfer was stopped, before the lane is broken for
// it.
constexpr int64_t kBreakLentNs = 10'000'000;
constexpr int64_t kBreakOwnNs = 2'000'000'000;
// A READ has no deadline of its own: an owner that is stopped, or a completion that got lost, shows
// only here. Longer than any fabric's retries.
constexpr int64_t kNoProgressNs = 10'000'000'000;

// Whether the path is known to be another than the one that is required.
absl::Status CheckPath(const Fetch& fetch, Path path) {
  if (fetch.require_path == Path::kNone || fetch.require_path == path) return absl::OkStatus();
  const absl::string_view required = PathName(fetch.require_path);
  return absl::FailedPreconditionError(absl::StrCat(
      "the path of these bytes is ", PathName(path), ", and ", required,
      required == "unknown" ? absl::StrCat(" (", static_cast<int>(fetch.require_path), ")") : "",
      " is required"));
}

bool IsHost(const fabric::LocalPiece& piece) { return piece.device->host_accessible(); }

bool FromHost(const wire::PayloadEntry& entry) {
  return entry.device_kind == static_cast<uint8_t>(::verbena::Device::Kind::kHost);
}

// That its first device memory has, or null.
const void* StreamOf(const Transfer& transfer) {
  for (const fabric::LocalPiece& piece : transfer.fetch->pieces) {
    if (piece.order.stream != nullptr && !IsHost(piece)) return piece.order.stream;
  }
  return nullptr;
}

// Before any of it moves.
absl::Status CheckStreams(const Fetch& fetch) {
  const void* last = nullptr;
  for (const fabric::LocalPiece& piece : fetch.pieces) {
    if (piece.order.stream == last || IsHost(piece)) continue;
    last = piece.order.stream;
    if (absl::Status s = piece.device->CheckOrder(piece.order); !s.ok()) return s;
  }
  return absl::OkStatus();
}

// The bytes [offset, offset + bytes) of `pieces`.
void Slice(absl::Span<const fabric::LocalPiece> pieces, uint64_t offset, uint64_t bytes,
           bool ordered, absl::InlinedVector<fabric::LocalPiece, 8>& slice) {
  for (const fabric::LocalPiece& piece : pieces) {
    if (offset >= piece.bytes) {
      offset -= piece.bytes;
      continue;
    }
    const uint64_t take = std::min<uint64_t>(piece.bytes - offset, bytes);
    const memory::StreamOrder order =
        ordered && !IsHost(piece) ? piece.order : memory::StreamOrder();
    slice.push_back({piece.device, piece.data + offset, take, order, piece.path});
    bytes -= take;
    if (bytes == 0) return;
    offset = 0;
  }
}

// The remote piece that holds byte `offset` of the payload; `offset` becomes the place within it.
size_t PieceAt(const wire::PayloadEntry& entry, uint64_t& offset) {
  size_t index = 0;
  while (offset >= entry.pieces[index].bytes) offset -= entry.pieces[index++].bytes;
  return index;
}

}  // namespace

Transfers::~Transfers() {
  VERBENA_DCHECK(idle() && fetching_bytes_ == 0, live_, " transfers live");
  link_.engine_impl().ForgetAwaiting(*this);
}

LinkImpl* Transfers::LinkOf(const Fetch& fetch) {
  return fetch.state_ == nullptr ? nullptr : static_cast<Transfer*>(fetch.state_)->link;
}

absl::Status Transfers::Check(const Fetch& fetch, const wire::PayloadEntry& entry,
                              uint64_t& bytes) const {
  if (fetch.pieces.size() > limits::kFetchPiecesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "a fetch into ", fetch.pieces.size(), " pieces; the limit is ", limits::kFetchPiecesMax));
  }
  bytes = 0;
  for (const fabric::LocalPiece& piece : fetch.pieces) {
    if (__builtin_add_overflow(bytes, uint64_t{piece.bytes}, &bytes)) bytes = UINT64_MAX;
  }
  if (fetch.offset > entry.bytes || bytes > entry.bytes - fetch.offset) {
    return absl::OutOfRangeError(absl::StrCat("a fetch of ", bytes, " bytes at ", fetch.offset,
                                              " of a payload of ", entry.bytes));
  }
  const uint64_t budget = link_.engine_impl().options().fetching_bytes_max;
  if (bytes > budget) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a fetch of ", bytes, " bytes; fetching_bytes_max is ", budget));
  }
  return absl::OkStatus();
}

void Transfers::Start(Fetch& fetch, const wire::PayloadEntry& entry, PayloadSetImpl* set) {
  uint64_t bytes = 0;
  absl::Status status = Check(fetch, entry, bytes);
  if (status.ok() && bytes != 0) status = CheckStreams(fetch);
  const Path all = PathOfAll(fetch, entry);
  if (status.ok() && bytes != 0 && all != Path::kNone) status = CheckPath(fetch, all);
  if (status.ok() && bytes != 0 && !link_.up()) status = link_.DownStatus();
  if (status.ok() && bytes != 0 && link_.lanes().ReaderFailed())
    status = StatusOf(Error::kLaneDown);
  std::vector<memory::ReadinessRef> awaited;
  const bool unordered = !link_.fabric().traits().orders_reads || FromHost(entry) ||
                         link_.engine_impl().reads_standing() >= kReadsStandingMax;
  if (status.ok() && bytes != 0 && unordered) status = RecordStreams(fetch, awaited);
  if (!status.ok() || bytes == 0) {
    link_.engine_impl().DoneLater(fetch, std::move(status));
    return;
  }
  Transfer& transfer = Add(fetch, set);
  transfer.entry = &entry;
  transfer.awaited = std::move(awaited);
  transfer.unordered = unordered;
  transfer.bytes = bytes;
  transfer.chunk_bytes = ChunkBytes(fetch, entry);
  transfer.path = all;
  const int64_t now_ns = link_.engine_impl().now_ns();
  transfer.admission_due_ns = now_ns + link_.engine_impl().admission_timeout_ns();
  waiting_.PushBack(transfer);
  if (transfer.suspended()) return Await(transfer);
  Admit();
  if (!transfer.admitted) link_.DueAt(transfer.admission_due_ns);
  Pump();
}

void Transfers::Await(Transfer& transfer) {
  if (awaiting_.empty()) link_.engine_impl().AwaitReady(*this);
  awaiting_.push_back(&transfer);
}

absl::Status Transfers::RecordStreams(const Fetch& fetch,
                                      std::vector<memory::ReadinessRef>& awaited) {
  const fabric::LocalPiece* last = nullptr;
  for (const fabric::LocalPiece& piece : fetch.pieces) {
    const bool known = last != nullptr && last->order.stream == piece.order.stream;
    if (piece.order.stream == nullptr || piece.device->host_accessible() || known) continue;
    last = &piece;
    absl::StatusOr<memory::ReadinessRef> ready = piece.device->Record(piece.order);
    if (!ready.ok()) return ready.status();
    if (!(*ready)->ready()) awaited.push_back(*std::move(ready));
  }
  return absl::OkStatus();
}

bool Transfers::PollReady(bool ask) {
  std::vector<std::pair<Transfer*, absl::Status>> failed;
  std::vector<Transfer*> ready;
  std::erase_if(awaiting_, [&](Transfer* transfer) {
    std::erase_if(transfer->awaited,
                  [](const memory::ReadinessRef& awaited) { return awaited->ready(); });
    absl::Status status;
    for (const memory::ReadinessRef& awaited : transfer->awaited) {
      if (ask) status.Update(awaited->Look());
    }
    if (!status.ok()) failed.emplace_back(transfer, std::move(status));
    if (transfer->awaited.empty()) ready.push_back(transfer);
    return transfer->awaited.empty();
  });
  for (Transfer* transfer : ready) Resume(*transfer);
  for (const auto& [transfer, status] : failed) Stop(*transfer, StreamFailure(*transfer, status));
  if (!ready.empty()) Pump();
  return awaiting_.empty();
}

void Transfers::Suspend(Transfer& transfer) {
  // With READs that move it stays what it is, and in its list.
  if (!transfer.suspended() || !transfer.admitted || transfer.stopping) return;
  if (transfer.posted != transfer.ordered) return;
  GiveBack(transfer);
  waiting_.PushBack(transfer);
  Admit();
}

void Transfers::Resume(Transfer& transfer) {
  transfer.progress_ns = link_.engine_impl().now_ns();
  if (transfer.admitted) return;
  transfer.admission_due_ns = transfer.progress_ns + link_.engine_impl().admission_timeout_ns();
  Admit();
  if (!transfer.admitted) link_.DueAt(transfer.admission_due_ns);
}

Transfers::Streams Transfers::StandingStreams() const {
  Streams streams;
  link_.engine_impl().reads().ForEach([&](ReadSlot, const PostedRead& read) {
    if (read.ordered && read.transfer->link == &link_) streams.push_back(StreamOf(*read.transfer));
  });
  return streams;
}

void Transfers::PostAgain(Transfer& transfer, const Chunk& chunk) {
  transfer.again.push_back(chunk);
  if (transfer.admitted) (transfer.bytes <= kSmallBytes ? small_ : large_).PushBack(transfer);
}

bool Transfers::PutOff(const PostedRead& read, Error error) {
  Transfer& transfer = *read.transfer;
  // Where the fabric knows a way, it is one that no stream orders.
  const bool no_order = error == Error::kUnsupported && transfer.path != Path::kNone &&
                        CheckPath(*transfer.fetch, transfer.path).ok();
  if ((!no_order && error != Error::kNoMemory) || transfer.stopping || !read.in_order) return false;
  PostAgain(transfer, read.chunk);
  if (!transfer.suspended() && !transfer.unordered) {
    const Streams standing = StandingStreams();
    transfer.crowded = !no_order && std::find(standing.begin(), standing.end(),
                                              StreamOf(transfer)) != standing.end();
    if (transfer.crowded) crowded_.push_back(&transfer);
  }
  if (!transfer.suspended() && !transfer.unordered) {
    transfer.unordered = true;
    const absl::Status status = RecordStreams(*transfer.fetch, transfer.awaited);
    if (!transfer.awaited.empty()) Await(transfer);
    if (!status.ok()) Stop(transfer, StreamFailure(transfer, status));
    if (!status.ok()) return true;
  }
  Suspend(transfer);
  return true;
}

void Transfers::LetCrowded(const void* stream) {
  if (crowded_.empty()) return;
  const Streams standing = StandingStreams();
  std::vector<Transfer*> let;
  bool one = false;  // where others stand there still
  std::erase_if(crowded_, [&](Transfer* transfer) {
    const void* const its = StreamOf(*transfer);
    const bool free = std::find(standing.begin(), standing.end(), its) == standing.end();
    const bool next = its == stream && !std::exchange(one, true);
    if (free || next) let.push_back(transfer);
    return free || next;
  });
  for (Transfer* transfer : let) {
    transfer->crowded = false;
    Resume(*transfer);
  }
}

Path Transfers::PathOfAll(const Fetch& fetch, const wire::PayloadEntry& entry) const {
  const fabric::Traits& traits = link_.fabric().traits();
  const bool host =
      FromHost(entry) && std::all_of(fetch.pieces.begin(), fetch.pieces.end(), IsHost);
  return host ? traits.path : traits.device_path;
}

uint64_t Transfers::ChunkBytes(const Fetch& fetch, const wire::PayloadEntry& entry) const {
  const fabric::Traits& traits = link_.fabric().traits();
  const bool devices =
      !FromHost(entry) && std::none_of(fetch.pieces.begin(), fetch.pieces.end(), IsHost);
  return devices && traits.device_chunk_bytes != 0 ? traits.device_chunk_bytes
                                                   : traits.read_chunk_bytes;
}

Transfer& Transfers::Add(Fetch& fetch, PayloadSetImpl* set) {
  Transfer* const transfer = new Transfer;
  transfer->fetch = &fetch;
  transfer->link = &link_;
  transfer->set = set;
  fetch.state_ = transfer;
  if (set != nullptr) set->OnTransferStarted();
  ++live_;
  link_.engine_impl().CountFetches(1);
  if (fetch.deadline_ns != 0) link_.DueAt(fetch.deadline_ns);
  return *transfer;
}

void Transfers::Hold(Fetch& fetch, PayloadSetImpl& set) {
  if (!link_.up()) {
    link_.engine_impl().DoneLater(fetch, link_.DownStatus());
    return;
  }
  Transfer& transfer = Add(fetch, &set);
  transfer.admission_due_ns = INT64_MAX;
  posted_.PushBack(transfer);
}

void Transfers::Admit() {
  const uint64_t budget = link_.engine_impl().options().fetching_bytes_max;
  const auto next_of = [this] {
    return waiting_.Find([](const Transfer& transfer) { return !transfer.suspended(); });
  };
  for (Transfer* next = next_of(); next != nullptr; next = next_of()) {
    if (next->bytes > budget - fetching_bytes_) return;
    fetching_bytes_ += next->bytes;
    next->admitted = true;
    next->progress_ns = link_.engine_impl().now_ns();
    if (Starves(*next)) link_.DueAt(next->progress_ns + kNoProgressNs);
    (next->bytes <= kSmallBytes ? small_ : large_).PushBack(*next);
  }
}

void Transfers::GiveBack(Transfer& transfer) {
  if (!std::exchange(transfer.admitted, false)) return;
  VERBENA_DCHECK(fetching_bytes_ >= transfer.bytes);
  fetching_bytes_ -= transfer.bytes;
}

bool Transfers::KeysFit(const Transfer& transfer) const {
  return transfer.entry->key_generation ==
         (link_.lanes().reader_lane().generation & wire::kKeyGenerationMask);
}

bool Transfers::Starves(const Transfer& transfer) const {
  return transfer.admitted && transfer.posted == transfer.ordered && transfer.unposted() &&
         !(link_.lanes().reader_up() && KeysFit(transfer));
}

void Transfers::OnLaneGone() {
  const int64_t now_ns = link_.engine_impl().now_ns();
  for (List<Transfer>* list : {&small_, &large_}) {
    list->ForEach([now_ns](Transfer& transfer) { transfer.progress_ns = now_ns; });
    if (!list->empty()) link_.DueAt(now_ns + kNoProgressNs);
  }
}

// The next to post a chunk of; round robin among its class. Null: none can now.
Transfer* Transfers::Pick() {
  for (List<Transfer>* list : {&small_, &large_}) {
    Transfer* const pick = list->Find(
        [&](const Transfer& transfer) { return KeysFit(transfer) && !transfer.suspended(); });
    if (pick != nullptr) {
      list->PushBack(*pick);
      return pick;
    }
  }
  return nullptr;
}

void Transfers::Pump() {
  EngineImpl& engine = link_.engine_impl();
  if (!link_.up() || !link_.lanes().reader_up()) return;
  while (reads_ < link_.fabric().traits().reads_in_flight) {
    if (engine.reads_full()) {
      if (small_.front() != nullptr || large_.front() != nullptr) engine.WaitForReads(link_);
      return;
    }
    Transfer* const transfer = Pick();
    if (transfer == nullptr) return;
    Post(*transfer);
  }
}

Chunk Transfers::NextChunk(Transfer& transfer) {
  if (!transfer.again.empty()) {
    const Chunk chunk = transfer.again.back();
    transfer.again.pop_back();
    return chunk;
  }
  uint64_t within = transfer.fetch->offset + transfer.next;
  const size_t piece = PieceAt(*transfer.entry, within);
  const uint64_t bytes =
      std::min({transfer.bytes - transfer.next, transfer.entry->pieces[piece].bytes - within,
                transfer.chunk_bytes});
  const Chunk chunk{transfer.next, bytes};
  transfer.next += bytes;
  return chunk;
}

void Transfers::Post(Transfer& transfer) {
  EngineImpl& engine = link_.engine_impl();
  const Chunk chunk = NextChunk(transfer);
  uint64_t within = transfer.fetch->offset + chunk.offset;
  const size_t piece = PieceAt(*transfer.entry, within);
  fabric::RemoteKey key;
  key.words = transfer.entry->keys[piece * transfer.entry->lanes];
  absl::InlinedVector<fabric::LocalPiece, 8> slice;
  Slice(transfer.fetch->pieces, chunk.offset, chunk.bytes, !transfer.unordered, slice);
  const bool in_order = !transfer.unordered && StreamOf(transfer) != nullptr;
  const ReadSlot slot = engine.reads().Add(PostedRead{&transfer, chunk, in_order});
  VERBENA_CHECK(slot.index != ReadSlot{}.index, "no READ slot");
  ++transfer.posted;
  ++reads_;
  transfer.progress_ns = engine.now_ns();
  if (transfer.posted - transfer.ordered == 1) link_.DueAt(transfer.progress_ns + kNoProgressNs);
  if (!transfer.unposted()) posted_.PushBack(transfer);
  engine.CountRead(chunk.bytes);
  ++link_.counted.reads;
  link_.counted.read_bytes += chunk.bytes;
  link_.fabric().Read(slot, link_.id(), link_.lanes().reader_lane(), key,
                      transfer.entry->pieces[piece].offset + within, slice);
}

void Transfers::OnReadPath(const PostedRead& read, Path path) { read.transfer->path = path; }

void Transfers::OnReadOrdered(PostedRead& read) {
  VERBENA_DCHECK(!read.ordered);
  read.ordered = true;
  link_.engine_impl().CountStanding(1);
  ++read.transfer->ordered;
  --reads_;  // a stream may be long in coming; the READs behind it need not wait
  MaybeTell(*read.transfer);
  Suspend(*read.transfer);
  Pump();
}

void Transfers::MaybeTell(Transfer& transfer) {
  if (transfer.told || transfer.unposted()) return;
  if (transfer.posted == 0 || transfer.ordered != transfer.posted) return;
  transfer.told = true;
  transfer.fetch->path = transfer.path;
  GiveBack(transfer);
  transfer.fetch->OnOrdered(transfer.status);
  Admit();
}

void Transfers::OnReadDone(const PostedRead& read, Error error) {
  Transfer& transfer = *read.transfer;
  const void* const stream = StreamOf(transfer);
  VERBENA_DCHECK(transfer.posted > 0 && (read.ordered || reads_ > 0));
  --transfer.posted;
  reads_ -= read.ordered ? 0 : 1;
  transfer.ordered -= read.ordered;
  link_.engine_impl().CountStanding(read.ordered ? -1 : 0);
  transfer.progress_ns = link_.engine_impl().now_ns();
  if (transfer.told) {
    if (error != Error::kOk) transfer.status.Update(ReadFailure(error, read.chunk, transfer));
    MaybeEnd(transfer);
  } else if (error == Error::kLaneDown && !transfer.stopping) {
    PostAgain(transfer, read.chunk);
  } else if (PutOff(read, error)) {
    // It goes on when its stream has.
  } else if (error == Error::kUnsupported && !transfer.stopping &&
             !CheckPath(*transfer.fetch, transfer.path).ok()) {
    Stop(transfer, CheckPath(*transfer.fetch, transfer.path));
  } else if (error != Error::kOk && !transfer.stopping) {
    Stop(transfer, ReadFailure(error, read.chunk, transfer));
  } else {
    MaybeTell(transfer);
    Suspend(transfer);
    MaybeEnd(transfer);
  }
  if (read.ordered) LetCrowded(stream);
  Pump();
}

void Transfers::Stop(Transfer& transfer, const absl::Status& why) {
  if (transfer.stopping || transfer.told) return;
  transfer.stopping = true;
  transfer.status = why;
  transfer.again.clear();
  if (std::exchange(transfer.crowded, false)) std::erase(crowded_, &transfer);
  posted_.PushBack(transfer);
  // What stands in a stream ends with that, lane or no lane.
  if (transfer.posted != transfer.ordered) {
    transfer.break_due_ns = link_.engine_impl().now_ns() +
                            (transfer.fetch->destination_lent ? kBreakLentNs : kBreakOwnNs);
    link_.DueAt(transfer.break_due_ns);
  } else if (transfer.posted != 0) {
    link_.DueAt(link_.engine_impl().now_ns());  // told then: nothing is, inline
  }
  MaybeEnd(transfer);
}

void Transfers::MaybeEnd(Transfer& transfer) {
  if (transfer.posted == 0 && !transfer.unposted()) End(transfer);
}

void Transfers::End(Transfer& transfer) {
  GiveBack(transfer);
  if (!transfer.awaited.empty()) std::erase(awaiting_, &transfer);
  transfer.fetch->state_ = nullptr;
  transfer.fetch->path = transfer.path;
  PayloadSetImpl* const set = transfer.set;
  link_.engine_impl().DoneLater(*transfer.fetch, std::move(transfer.status));
  delete &transfer;
  --live_;
  link_.engine_impl().CountFetches(-1);
  if (set != nullptr) set->OnTransferEnded();
  Admit();
}

void Transfers::Cancel(Fetch& fetch, const absl::Status& why) {
  if (fetch.state_ == nullptr) return;
  Transfer& transfer = *static_cast<Transfer*>(fetch.state_);
  transfer.link->transfers().Stop(transfer, why);
}

void Transfers::StopAllOf(PayloadSetImpl& set, const absl::Status& why) {
  // Stop may end the last one and delete what the set's user dropped: collect first.
  std::vector<Transfer*> mine;
  for (List<Transfer>* list : {&waiting_, &small_, &large_, &posted_}) {
    list->ForEach([&](Transfer& transfer) {
      if (transfer.set == &set) mine.push_back(&transfer);
    });
  }
  for (Transfer* transfer : mine) Stop(*transfer, why);
  Pump();
}

void Transfers::FailAll(const absl::Status& why) {
  std::vector<Transfer*> all;
  for (List<Transfer>* list : {&waiting_, &small_, &large_, &posted_}) {
    list->ForEach([&](Transfer& transfer) { all.push_back(&transfer); });
  }
  for (Transfer* transfer : all) Stop(*transfer, why);
}

void Transfers::TellStopped() {
  const auto next = [this] {
    return posted_.Find([](const Transfer& transfer) {
      return transfer.stopping && !transfer.told && transfer.posted != 0 &&
             transfer.ordered == transfer.posted;
    });
  };
  for (Transfer* transfer = next(); transfer != nullptr; transfer = next()) MaybeTell(*transfer);
}

void Transfers::OnLinkDown() {
  std::vector<ReadSlot> mine;
  ReadTable& reads = link_.engine_impl().reads();
  reads.ForEach([&](ReadSlot slot, const PostedRead& read) {
    if (read.transfer->link == &link_) mine.push_back(slot);
  });
  for (const ReadSlot slot : mine) {
    const PostedRead read = *reads.Find(slot);
    reads.Remove(slot);
    OnReadDone(read, Error::kLinkDown);
  }
}

void Transfers::Expire(int64_t now_ns) {
  std::vector<Transfer*> all;
  for (List<Transfer>* list : {&waiting_, &small_, &large_, &posted_}) {
    list->ForEach([&](Transfer& transfer) { all.push_back(&transfer); });
  }
  for (Transfer* transfer : all) ExpireOne(*transfer, now_ns);
  TellStopped();
  Pump();
}

void Transfers::ExpireOne(Transfer& transfer, int64_t now_ns) {
  if (transfer.told) return;  // its stream may take its time
  const int64_t deadline_ns = transfer.fetch->deadline_ns;
  const bool starves = Starves(transfer);
  if (transfer.posted != transfer.ordered || starves) {
    if (now_ns - transfer.progress_ns >= kNoProgressNs) {
      if (starves) {
        return Stop(transfer,
                    absl::UnavailableError(absl::StrCat(
                        "no lane, or no keys on it, for the rest of a fetch of ", transfer.bytes,
                        " bytes within ", kNoProgressNs / 1'000'000'000, " s")));
      }
      link_.lanes().BreakReaderLane();
    } else {
      link_.DueAt(transfer.progress_ns + kNoProgressNs);
    }
  }
  if (transfer.stopping) {
    if (transfer.break_due_ns == 0) return;
    if (now_ns - transfer.break_due_ns < 0) {
      link_.DueAt(transfer.break_due_ns);
      return;
    }
    transfer.break_due_ns = 0;
    link_.lanes().BreakReaderLane();
    return;
  }
  if (deadline_ns != 0 && now_ns - deadline_ns >= 0) {
    Stop(transfer, absl::DeadlineExceededError("the fetch's deadline passed"));
    return;
  }
  const bool waits = !transfer.admitted && !transfer.suspended();
  if (waits && now_ns - transfer.admission_due_ns >= 0) {
    Stop(transfer, absl::ResourceExhaustedError(absl::StrCat(
                       "no room for a fetch of ", transfer.bytes, " bytes within ",
                       link_.engine_impl().options().fetching_bytes_max, " (fetching_bytes_max)")));
    return;
  }
  if (deadline_ns != 0) link_.DueAt(deadline_ns);
  if (waits) link_.DueAt(transfer.admission_due_ns);
}

}  // namespace verbena::session
