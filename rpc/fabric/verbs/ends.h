#pragma once
// The queue pairs that a fabric's reactor uses: this side's end of a control lane or a bulk lane.
//
// An end is up, or on its way down, which it never leaves:
//   kUp       -> kFailing    the setup thread puts the queue pair into the error state
//   kFailing  -> kDraining   a marker is posted; what was posted before completes first
//   kDraining -> kDestroying the setup thread deallocates the windows and destroys it
// and then the end is gone. Nothing is posted after kUp but the marker.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <utility>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/base/ids.h"
#include "rpc/base/limits.h"
#include "rpc/base/slot_table.h"
#include "rpc/fabric/stages.h"
#include "rpc/fabric/verbs/domain.h"
#include "rpc/fabric/verbs/key.h"
#include "rpc/fabric/verbs/lease_copy.h"
#include "rpc/fabric/verbs/queue_pair.h"
#include "rpc/fabric/verbs/sizes.h"

namespace verbena::fabric::verbs {

enum class EndKind : uint8_t { kControl, kReader, kOwner };
enum class EndState : uint8_t { kUp, kFailing, kDraining, kDestroying };

// A queue pair with, on a device without SRQs, the receives that are its own.
struct OwnedPair {
  std::unique_ptr<QueuePair> pair;
  std::vector<uint32_t> receives;
};

struct End {
  End(EndKind kind_in, LinkId link_in, OwnedPair owned_in, uint32_t work_max_in)
      : kind(kind_in), link(link_in), owned(std::move(owned_in)), work_max(work_max_in) {}
  virtual ~End() = default;

  ibv_qp* qp() const { return owned.pair->handle(); }
  bool up() const { return state == EndState::kUp; }
  uint32_t outstanding() const { return posted - completed; }
  // Work requests that may be posted now; one is kept for the marker.
  uint32_t room() const { return work_max - 1 - outstanding(); }

  const EndKind kind;
  const LinkId link;
  OwnedPair owned;
  const uint32_t work_max;
  uint32_t number = 0;  // in Ends
  EndState state = EndState::kUp;
  uint32_t posted = 0;  // work requests ever, modulo 2^32
  uint32_t completed = 0;
  int64_t drain_deadline_ns = 0;  // kDraining
};

struct ControlEnd final : End {
  static constexpr uint32_t kNoBuffer = ~0u;
  static constexpr uint32_t kRing = 64;
  static_assert(limits::kVerbsControlWorkMax <= kRing);

  // The most that is copied: whole cache lines, as they are read.
  static constexpr uint32_t kCopyBytes = 256;
  static_assert(kInlineBytes <= kCopyBytes && kCopyBytes % 64 == 0);

  struct Queued {
    const std::byte* data;
    uint32_t buffer;  // kNoBuffer: it is a copy
    uint32_t bytes;
  };
  struct alignas(64) Copy {
    std::array<std::byte, kCopyBytes> bytes;
  };

  ControlEnd(LinkId link_in, OwnedPair owned_in, uint32_t work_max_in)
      : End(EndKind::kControl, link_in, std::move(owned_in), work_max_in),
        inline_bytes(owned.pair->inline_bytes()) {}

  // Work requests that frames may take; the link's last word has a place of its own.
  uint32_t frame_room() const { return room() - std::min(room(), 1u); }

  const uint32_t inline_bytes;
  std::vector<Queued> chain;                  // handed over, not posted yet
  std::vector<std::unique_ptr<Copy>> copies;  // of frames that leave inline; never given back
  uint32_t copied = 0;                        // of them in use
  std::array<uint32_t, kRing> held{};  // by number: the buffer that its completion gives back
  uint32_t acquired = 0;               // buffers that are being filled
  uint32_t unsignalled = 0;            // posted since the last that says when it is done
  // Of a peer that takes nothing: what it had not taken at a time when buffers were wanted.
  uint32_t watched = 0;
  int64_t watched_ns = 0;
};

// One Read: a work request, or several where its destination has many pieces.
struct ReadRecord {
  ReadSlot slot;
  uint32_t end = 0;
  uint64_t address = 0;  // of the owner's memory
  uint32_t rkey = 0;
  uint64_t bytes = 0;
  std::vector<ibv_sge> pieces;
  size_t next_piece = 0;     // the first that is not posted
  uint32_t works_left = 0;   // posted and not completed
  bool registering = false;  // a job registers its destination
  bool answered = false;     // meanwhile its lane went down
  Error error = Error::kOk;
  std::vector<Domain::Pin> pins;
  std::vector<ibv_mr*> own;  // registrations made for this READ
  Source source = Source::kHost;
  ::verbena::Path path = ::verbena::Path::kNone;
  // By way of a stage: `pieces` is that, and this is where its bytes go.
  std::vector<LocalPiece> staged;
  std::shared_ptr<Stages> stages;
  uint32_t stage = Stages::kNone;
  bool parked = false;   // waits for a stage
  bool copying = false;  // READ, and its device copies or flushes it, or will
  // Into a device's memory by the NIC itself.
  memory::Device* flush = nullptr;  // who is flushed when it is READ
  ::verbena::Path required = ::verbena::Path::kNone;
};
using ReadId = SlotId<struct ReadRecordTag>;

struct ReaderEnd final : End {
  static constexpr uint32_t kRing = 64;
  static_assert(limits::kVerbsBulkWorkMax <= kRing);

  ReaderEnd(LinkId link_in, Lane lane_in, OwnedPair owned_in, uint32_t work_max_in)
      : End(EndKind::kReader, link_in, std::move(owned_in), work_max_in), lane(lane_in) {}

  const Lane lane;
  std::deque<ReadId> waiting;  // not, or not wholly, posted
  struct Work {
    ReadId read;
    uint32_t bytes = 0;
  };
  std::array<Work, kRing> works{};
  bool listed = false;   // among those that want to post
  uint32_t copying = 0;  // READs whose bytes are copied out of stages: the lane outlives them
  bool flushed = false;  // kDraining, and nothing that was posted is left
  bool told_down = false;
};

struct OwnerEnd final : End {
  static constexpr uint32_t kRing = 64;
  static_assert(limits::kVerbsBulkWorkMax <= kRing);

  enum class Op : uint8_t { kBind, kInvalidate };
  struct Work {
    LeaseSlot slot;
    Op op = Op::kBind;
    ibv_mw* window = nullptr;
  };

  OwnerEnd(LinkId link_in, Lane lane_in, OwnedPair owned_in, uint32_t work_max_in)
      : End(EndKind::kOwner, link_in, std::move(owned_in), work_max_in), lane(lane_in) {}

  const Lane lane;
  std::deque<Work> waiting;
  std::array<Work, kRing> works{};
  bool listed = false;
  // Of leases whose lane goes down: let go of when the queue pair is destroyed.
  std::vector<ibv_mw*> windows;
  std::vector<ibv_mr*> own;
  std::vector<Domain::Pin> pins;
  std::vector<std::unique_ptr<LeaseCopy>> copies;
};

// All ends of a fabric, by the number that their work requests carry. A number comes back only
// after its slot was used 1,024 times. Reactor thread only.
class Ends {
 public:
  uint32_t Add(std::unique_ptr<End> end) {
    uint32_t index;
    if (free_.empty()) {
      index = static_cast<uint32_t>(slots_.size());
      VERBENA_CHECK(index < kSlots, "ends of queue pairs: ", index);
      slots_.emplace_back();
    } else {
      index = free_.back();
      free_.pop_back();
    }
    Slot& slot = slots_[index];
    end->number = slot.generation << kIndexBits | index;
    slot.end = std::move(end);
    return slot.end->number;
  }
  End* Find(uint32_t number) {
    const uint32_t index = number & (kSlots - 1);
    if (index >= slots_.size()) return nullptr;
    Slot& slot = slots_[index];
    return slot.end != nullptr && slot.end->number == number ? slot.end.get() : nullptr;
  }
  std::unique_ptr<End> Remove(uint32_t number) {
    const uint32_t index = number & (kSlots - 1);
    Slot& slot = slots_[index];
    slot.generation = (slot.generation + 1) & (kGenerations - 1);
    free_.push_back(index);
    return std::move(slot.end);
  }
  size_t size() const { return slots_.size() - free_.size(); }
  template <class F>
  void ForEach(F&& f) {
    for (Slot& slot : slots_) {
      if (slot.end != nullptr) f(*slot.end);
    }
  }

 private:
  static constexpr uint32_t kIndexBits = 14;
  static constexpr uint32_t kSlots = 1 << kIndexBits;
  static constexpr uint32_t kGenerations = 1 << (24 - kIndexBits);
  static_assert(5 * limits::kVerbsLinksMax <= kSlots);

  struct Slot {
    std::unique_ptr<End> end;
    uint32_t generation = 0;
  };
  std::vector<Slot> slots_;
  std::vector<uint32_t> free_;
};

}  // namespace verbena::fabric::verbs
