#pragma once
// shm::Transfers: the READs of one fabric. Each is checked against the peer's lease table, copied a
// budget at a time by a memory::CopyEngine (what the peer exported) or from the peer's process (to
// a device by way of a block of the pools), or from stages that the owner fills
// (transfers_staged.cc: what cannot be mapped here), and checked again. Small ones go before large
// ones; few copies are begun at once, because a begun one has to end before its lane or link can.
//
// A copy between devices in a stream's order holds its lease: what the stream does next relies on
// it, and nobody looks again afterwards. Once it stands in the stream, it is told, and others
// begin. Each stream has an engine of its own, so that what stands in one keeps no other waiting.
// Other copies, which stages or the CPU have a part in, are not ordered: whoever wants that waits
// for the stream first.
//
// Reactor thread only.
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/link.h"
#include "rpc/fabric/shm/process_copy.h"
#include "rpc/memory/region.h"

namespace verbena::fabric::shm {

class Transfers {
 public:
  // Reports a READ's end; has a job map, or fault in, what the peer of `link` exported.
  struct Owner {
    virtual void OnTransferDone(ReadSlot slot, Error error, Path path) = 0;
    virtual void OnTransferOrdered(ReadSlot slot, Path path) = 0;
    // The peer waits, or may, for what this side wrote.
    virtual void Wake(Link& link) = 0;
    virtual void WantImport(Link& link, const Want& want) = 0;
    // The peer wrote what none may: its link has to end.
    virtual void OnViolation(Link& link, const absl::Status& cause) = 0;

   protected:
    ~Owner() = default;
  };

  explicit Transfers(Owner& owner) : owner_(owner) {}

  void Add(ReadSlot slot, Link& link, Lane lane, const RemoteKey& key, uint64_t offset,
           absl::Span<const LocalPiece> pieces);
  // A job that took exports of `link` has ended: what waited is tried again. `all`: whatever had
  // come was taken, so that what is not there now is not to be waited for.
  void OnImports(Link& link, bool all);
  // Answers with `error` for what has not begun: of one lane, or of the whole link.
  void Cancel(Link& link, const Lane* lane, Error error);
  // Whether a copy into a destination of the lane goes on, apart from those that stand in streams.
  bool Copying(const Link& link, Lane lane) const;

  // Whether Work would do anything now. What waits for another process does not count: that rings.
  bool busy() const {
    return begun_ > 0 || !small_.empty() || !large_.empty() || (!staged_.empty() && StagesToDo());
  }
  // Whether there is anything at all.
  bool any() const { return !staged_.empty() || busy() || ordered_ > 0; }
  // Copies that stand in streams: they end without this thread, and Work finds out.
  uint32_t ordered() const { return ordered_; }
  // Copies at most `budget` bytes; `yield` as in memory::CopyEngine::Poll. True: something ended.
  bool Work(size_t budget, absl::FunctionRef<bool()> yield);

 private:
  static constexpr uint32_t kNoHold = ~0u;
  // Streams of one device that have an engine. More, and READs in the order of others have to wait
  // until those are idle, or for their stream; each is a stream of the library's on that GPU.
  static constexpr int kStreamsMax = 8;
  // Copies from stages that wait in an engine; those come again. What is left is for READs of
  // mapped memory, two of which begin at a time, with a copy for each run of pieces on one device.
  static constexpr uint32_t kStagedCopiesMax = limits::kCopiesInFlightMax - 16;
  enum class State : uint8_t { kFree, kQueued, kWaiting, kCopying };
  struct Transfer {
    State state = State::kFree;
    bool by_process = false;
    bool staged = false;
    bool ordered = false;
    uint32_t hold = kNoHold;
    Error error = Error::kOk;
    Path path = Path::kNone;  // once it is known
    uint32_t outstanding = 0;
    uint32_t import_round =
        0;                  // kWaiting: of the job that will have seen the export, if there is one
    bool imported = false;  // that job has ended, and none need follow it
    ImportRef import;       // kCopying: what it copies from
    ReadSlot slot;
    Link* link = nullptr;
    Lane lane;
    RemoteKey key;
    uint64_t offset = 0;
    size_t bytes = 0;
    absl::InlinedVector<LocalPiece, 4> pieces;
    memory::Device* into = nullptr;    // of the pieces; of several a device
    memory::CopyEngine* by = nullptr;  // kCopying between devices: who copies
    uint64_t asked = 0;                // staged: bytes that were asked for
    bool stages_wanted = false;        // staged: a job maps the stages
    ProcessCopy process;
    memory::Block bounce;               // what `process` fills for a device
    std::unique_ptr<std::byte[]> heap;  // or this
    LocalPiece bounced;                 // all of that
  };
  struct Engine {
    memory::Device* device;
    void* stream;  // that all its copies are ordered by; null: by none
    std::unique_ptr<memory::CopyEngine> copies;
    uint32_t busy = 0;  // copies that have not ended
  };

  void Queue(uint32_t index);
  // Begins the next queued ones while few are under way.
  bool BeginSome();
  void Begin(uint32_t index);
  // False: it waits for memory that is not mapped, or not as it needs.
  bool HasImport(Transfer& t, const LeaseView& view);
  bool Ready(const Transfer& t, uint64_t offset, uint64_t populate) const;
  // Whether the first byte would come as the READ requires, and in the order that it wants, which
  // only copies between devices have; else it has ended.
  bool TakesPath(uint32_t index, Path path, bool ordered = false);
  // False: it is not known that `buffer` cannot be mapped. Else it is staged, or ends: for host
  // memory this process had no descriptor.
  bool BeginUnmapped(uint32_t index, uint64_t buffer);
  void BeginMapped(uint32_t index, const memory::Mapping& mapping, uint64_t offset);
  void BeginProcess(uint32_t index, uint64_t address);
  // Whether its owner has closed the link, or is dead.
  static bool PeerIsGone(const Link& link);
  // For a lease that has ended: alone, or with its link.
  static Error WhyLost(const Link& link) {
    return PeerIsGone(link) ? Error::kLinkDown : Error::kLeaseLost;
  }
  // Not kOk: the lease is lost, or there is none now.
  Error TakeHold(Transfer& t);
  void DropHold(Transfer& t);
  // Tells of those that have got their place in a stream.
  void TellOrdered();
  // Staged READs. Each step asks for what it may, and copies what has been answered. True: ended.
  void BeginStaged(uint32_t index);
  bool StagesToDo() const;
  bool StepStaged(uint32_t index);
  // Whether stages are mapped, and ready; else a job is to see to it.
  bool HasStages(Transfer& t, uint64_t buffer);
  // Host memory serves whatever it is copied to; a device's must be mapped by the one that copies.
  static const Import* FindImport(const Link& link, uint64_t buffer, const memory::Device& into);
  // False: it waits for the mapping, or for room in the engine.
  bool CopyStage(uint32_t index, uint32_t stage);
  // False: the engine has no room now.
  bool CopyFromStage(uint32_t index, uint32_t stage, const std::byte* from);
  void AskStages(uint32_t index);
  void OnStageCopied(uint32_t index, uint32_t stage, bool ok);
  static void FreeStage(Link& link, uint32_t stage);
  // Whether the peer has filled it, or refused to.
  static bool Answered(const Link& link, uint32_t stage);
  // What of [offset, offset + bytes) of a READ, which lies at `from`, goes to `device`, or (null)
  // to all of its devices: one copy, since an engine has room for so many, and not for every piece.
  struct Parts {
    absl::InlinedVector<memory::CopyPiece, 8> pieces;
    memory::StreamOrder order;
  };
  static Parts PartsOn(const Transfer& t, const memory::Device* device, uint64_t offset,
                       uint64_t bytes, const std::byte* from);
  using Devices = absl::InlinedVector<memory::Device*, 4>;
  static Devices DevicesOf(const Transfer& t);
  // Queues copies from `from` to the pieces; ends it where none could be. `mapped`: of a device.
  void CopyToPieces(uint32_t index, const std::byte* from, memory::Device* mapped);
  void Finish(uint32_t index);
  // Null: as many streams of the device as can be have one, and are busy.
  Engine* EngineFor(memory::Device& device, void* stream);
  // False: it has no room now.
  bool CopyBy(memory::Device& device, uint64_t tag, absl::Span<const memory::CopyPiece> run,
              const memory::StreamOrder& order, memory::CopyEngine** by = nullptr);

  Owner& owner_;
  std::deque<Transfer> all_;  // stable addresses; grows to the most that were ever in flight
  std::vector<uint32_t> free_;
  std::deque<uint32_t> small_, large_;
  std::vector<uint32_t> by_process_, staged_, ordering_;
  std::vector<Engine> engines_;
  uint32_t begun_ = 0;
  uint32_t ordered_ = 0;  // no longer among those
};

}  // namespace verbena::fabric::shm
