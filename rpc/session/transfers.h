#pragma once
// READs of one link: fetches are split into chunks of traits().read_chunk_bytes, at most
// traits().reads_in_flight posted, small transfers first, the others in turn. A stopped transfer
// posts no more and ends when its posted chunks have; if they do not within a bound, the lane is
// broken. Chunks lost with a lane are posted again on its successor.
//
// A transfer in the order of a stream whose READs the fabric does not order (traits().orders_reads)
// posts nothing before the work that was queued there has ended: its chunks would keep stages, and
// places among the posted, from others for as long as that takes. One for whose READs the fabric
// has no room in their stream posts no more before others that stand there have ended. Neither
// counts as admitted meanwhile, nor does one of which all stands in its stream.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "rpc/base/ids.h"
#include "rpc/base/slot_table.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/ready_waiter.h"
#include "rpc/session/session.h"
#include "rpc/wire/payload_table.h"

namespace verbena::session {

class LinkImpl;
class PayloadSetImpl;
class Transfer;

struct Chunk {
  uint64_t offset = 0;  // within the transfer
  uint64_t bytes = 0;
};
struct PostedRead {
  Transfer* transfer = nullptr;
  Chunk chunk;
  bool in_order = false;  // posted with the order of a stream
  bool ordered = false;   // it stands there
};
using ReadTable = SlotTable<PostedRead, ReadTag>;

// READs of one reactor that stand in streams, which count among no others. With more, fetches wait
// for their streams first. Fabrics have room for fewer: shm for 512 on each device.
inline constexpr uint32_t kReadsStandingMax = 1 << 16;

class Transfer : public ListNode<Transfer> {
 public:
  Fetch* fetch = nullptr;
  LinkImpl* link = nullptr;
  PayloadSetImpl* set = nullptr;  // null: a body or a head, which its Arrival owns
  const wire::PayloadEntry* entry = nullptr;
  uint64_t bytes = 0;
  uint64_t chunk_bytes = 0;
  uint64_t next = 0;         // first byte not yet posted
  std::vector<Chunk> again;  // lost with their lane
  uint32_t posted = 0;
  uint32_t ordered = 0;                       // of the posted ones
  bool told = false;                          // all that was left stands in the stream
  std::vector<memory::ReadinessRef> awaited;  // posts nothing before
  bool crowded = false;    // nor before a READ that stands in its stream has ended
  bool unordered = false;  // its READs go without an order: its streams have been waited for
  bool admitted = false;
  bool stopping = false;
  Path path = Path::kNone;  // of the READ that ended last
  absl::Status status;
  int64_t admission_due_ns = 0;
  int64_t break_due_ns = 0;
  int64_t progress_ns = 0;  // when it was admitted, or a chunk posted or done, or its lane went

  bool unposted() const { return !stopping && (next < bytes || !again.empty()); }
  bool suspended() const { return crowded || !awaited.empty(); }
};

class Transfers final : public ReadyWaiter {
 public:
  explicit Transfers(LinkImpl& link) : link_(link) {}
  ~Transfers();

  // Checks and queues; whatever is wrong comes by OnDone. `set` null: `entry` stays valid until
  // OnDone.
  void Start(Fetch& fetch, const wire::PayloadEntry& entry, PayloadSetImpl* set);
  // A place among the transfers of `set` for one whose memory is not there yet: ends as a transfer
  // that cannot go on does, or with Cancel.
  void Hold(Fetch& fetch, PayloadSetImpl& set);
  static void Cancel(Fetch& fetch, const absl::Status& why);
  void StopAllOf(PayloadSetImpl& set, const absl::Status& why);
  static bool Running(const Fetch& fetch) { return fetch.state_ != nullptr; }
  static LinkImpl* LinkOf(const Fetch& fetch);

  // No READ can be posted until the lane has a successor.
  void OnLaneGone();
  void OnReadDone(const PostedRead& read, Error error);
  static void OnReadPath(const PostedRead& read, Path path);
  void OnReadOrdered(PostedRead& read);
  // After the fabric's LinkDown, which ends READs that it was given too late to answer.
  void OnLinkDown();
  // Posts what may be posted.
  void Pump();
  void Expire(int64_t now_ns);
  bool PollReady(bool ask) override;
  // No new READ can succeed: all stop with `why`.
  void FailAll(const absl::Status& why);
  // Tells of those that have stopped, and of which what was posted stands in a stream. Runs code of
  // users, which may stop others.
  void TellStopped();
  bool idle() const { return live_ == 0; }

 private:
  Transfer& Add(Fetch& fetch, PayloadSetImpl* set);
  uint64_t ChunkBytes(const Fetch& fetch, const wire::PayloadEntry& entry) const;
  // How all of its bytes come; kNone: that is said by READ.
  Path PathOfAll(const Fetch& fetch, const wire::PayloadEntry& entry) const;
  absl::Status Check(const Fetch& fetch, const wire::PayloadEntry& entry, uint64_t& bytes) const;
  // What is queued now on the streams that it is ordered by.
  static absl::Status RecordStreams(const Fetch& fetch, std::vector<memory::ReadinessRef>& awaited);
  void Await(Transfer& transfer);
  // Whether `error` says that the fabric did not order the READ, of which nothing has moved: it is
  // posted again in time.
  bool PutOff(const PostedRead& read, Error error);
  using Streams = absl::InlinedVector<const void*, 8>;
  // In which READs of this link stand.
  Streams StandingStreams() const;
  // A READ that stood in `stream` has ended: those that wait for one can be posted.
  void LetCrowded(const void* stream);
  void PostAgain(Transfer& transfer, const Chunk& chunk);
  // Gives back what it takes of the budget, if it waits and nothing of it moves.
  void Suspend(Transfer& transfer);
  void Resume(Transfer& transfer);
  void Admit();
  // What it takes of the budget of fetching bytes, if anything.
  void GiveBack(Transfer& transfer);
  Transfer* Pick();
  // The rest of it waits for a lane, or for keys on that.
  bool Starves(const Transfer& transfer) const;
  bool KeysFit(const Transfer& transfer) const;
  Chunk NextChunk(Transfer& transfer);
  void Post(Transfer& transfer);
  void Stop(Transfer& transfer, const absl::Status& why);
  void MaybeEnd(Transfer& transfer);
  void MaybeTell(Transfer& transfer);
  void End(Transfer& transfer);
  void ExpireOne(Transfer& transfer, int64_t now_ns);

  LinkImpl& link_;
  List<Transfer> waiting_;  // for the budget of fetching bytes, or suspended
  List<Transfer> small_;    // admitted, something to post
  List<Transfer> large_;
  List<Transfer> posted_;            // nothing left to post, or stopping
  std::vector<Transfer*> awaiting_;  // with something awaited
  std::vector<Transfer*> crowded_;
  uint32_t live_ = 0;
  uint32_t reads_ = 0;  // posted on this link, and not standing in a stream
  uint64_t fetching_bytes_ = 0;
};

}  // namespace verbena::session
