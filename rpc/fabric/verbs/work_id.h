#pragma once
// WorkId: what a work request is called in its completion. A failed completion says nothing else
// that can be trusted, so everything that is needed to find its owner is in here.
#include <cstdint>

namespace verbena::fabric::verbs {

enum class WorkKind : uint8_t {
  kReceive = 1,  // number: the buffer
  kSend,         // control lane
  kRead,         // bulk lane, reader's end
  kOwn,          // bulk lane, owner's end: BIND or LOCAL_INV
  kBye,          // control lane: the link's last word
  kMarker,       // any, once it has failed: everything before it has completed
};

// kind: 8 bits | end: 24 bits, which queue pair of the fabric (ends.h) | number: 32 bits, which of
// its work requests, counted from 0.
struct WorkId {
  WorkKind kind = WorkKind::kReceive;
  uint32_t end = 0;
  uint32_t number = 0;

  constexpr uint64_t word() const {
    return uint64_t{static_cast<uint8_t>(kind)} << 56 | uint64_t{end & 0xffffff} << 32 | number;
  }
  static constexpr WorkId FromWord(uint64_t word) {
    return {static_cast<WorkKind>(word >> 56), static_cast<uint32_t>(word >> 32) & 0xffffff,
            static_cast<uint32_t>(word)};
  }
};

}  // namespace verbena::fabric::verbs
