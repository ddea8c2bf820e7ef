#pragma once
// Names of things that another layer refers to. Operations in flight are named by slot index and
// generation, never by pointer, so that a late completion for something closed is detected and not
// dereferenced.
#include <cstdint>

namespace verbena {

// Index of a link in its reactor's table. Reused only after the fabric's LinkDown, which is a
// link's last event.
enum class LinkId : uint32_t { kNone = ~0u };

template <class Tag>
struct SlotId {
  uint32_t index = ~0u;
  uint32_t generation = 0;
  friend constexpr bool operator==(SlotId, SlotId) = default;
  constexpr uint64_t word() const { return uint64_t{generation} << 32 | index; }
  static constexpr SlotId FromWord(uint64_t w) {
    return {static_cast<uint32_t>(w), static_cast<uint32_t>(w >> 32)};
  }
};

// One lease of local memory to one peer; chosen by the session, echoed by the fabric.
using LeaseSlot = SlotId<struct LeaseTag>;
// One READ (a chunk of a transfer) posted to a fabric; chosen by the session, echoed by the fabric.
using ReadSlot = SlotId<struct ReadTag>;

// Who reads on a bulk lane: the end that posts READs, or the end that owns the memory.
enum class LaneRole : uint8_t { kReader, kOwner };
struct Lane {
  uint8_t index = 0;
  LaneRole role = LaneRole::kReader;
  uint32_t generation =
      0;  // + 1 with each rebuild: nothing of an old lane is taken for the new one
  friend constexpr bool operator==(Lane, Lane) = default;
};

// What the data path carries instead of a Status; it becomes a Status with text only when handed to
// a user.
enum class Error : uint8_t {
  kOk = 0,
  kLeaseLost,    // revoked or released before or during the READ; nothing of the bytes may be used
  kOutOfBounds,  // the range lies outside the lease
  kLaneDown,     // the lane broke; the READ may be posted again on its successor
  kLinkDown,     // the peer is gone
  kUnsupported,  // this fabric cannot reach that memory
  kNoMemory,
  kFault,  // memory vanished under the copy (unmapped, truncated)
};

}  // namespace verbena
