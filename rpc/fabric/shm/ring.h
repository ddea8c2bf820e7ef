#pragma once
// The two ends of a ring of 64-byte lines. A frame lies on whole lines; its first 8 bytes are what
// commits it: they are never zero (they hold its length), they are written last, and the line after
// a frame starts with zeros before that. Nothing in a ring says what is free: the sessions' credits
// do.
//
// What the prototype's measurements ask for: the sender never writes to the line that the receiver
// polls until the frame is complete (it fills a private buffer), no cursor has a line of its own,
// and each side writes to its own segment only.
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "rpc/fabric/shm/segment.h"
#include "rpc/fabric/shm/tsan_order.h"

namespace verbena::fabric::shm {

inline uint32_t LinesOf(uint32_t bytes) { return (bytes + kLineBytes - 1) / kLineBytes; }

// Line by line: for so few bytes of a known unit the compiler would take a string instruction,
// whose start costs more than the copy.
inline void CopyLines(std::byte* to, const std::byte* from, uint32_t lines) {
  for (uint32_t i = 0; i < lines; ++i) {
    memcpy(to + size_t{i} * kLineBytes, from + size_t{i} * kLineBytes, kLineBytes);
  }
}

class RingWriter {
 public:
  // `mine` has its nonce.
  void Attach(const Segment& mine) {
    ring_ = mine.ring();
    order_.Attach(mine.control());
  }

  // `data` has room up to whole lines; the bytes beyond `bytes` on the last one go along (what an
  // earlier frame of this process left there: the peer runs as the same user, who may read all of
  // this process anyway).
  void Write(const std::byte* data, uint32_t bytes) {
    const uint32_t lines = LinesOf(bytes);
    std::byte* at = ring_ + size_t{at_} * kLineBytes;
    at_ = (at_ + lines) % kRingLines;
    __atomic_store_n(reinterpret_cast<uint64_t*>(ring_ + size_t{at_} * kLineBytes), uint64_t{0},
                     __ATOMIC_RELAXED);
    CopyLines(at + kLineBytes, data + kLineBytes, lines - 1);
    memcpy(at + 8, data + 8, kLineBytes - 8);
    uint64_t
        commit;  // the length joins in a register: a load right behind a narrower store would stall
    memcpy(&commit, data, sizeof commit);
    commit = (commit & ~uint64_t{0xffff}) | bytes;
    order_.Release();
    __atomic_store_n(reinterpret_cast<uint64_t*>(at), commit, __ATOMIC_RELEASE);
  }

 private:
  std::byte* ring_ = nullptr;
  uint32_t at_ = 0;
  [[no_unique_address]] TsanOrder order_;
};

class RingReader {
 public:
  void Attach(const Segment& theirs) {
    ring_ = theirs.ring();
    order_.Attach(theirs.control());
  }

  // The commit word of the next frame; 0 = none yet. Read once: the peer may change it under our
  // eyes.
  uint64_t Next() const {
    return __atomic_load_n(reinterpret_cast<const uint64_t*>(ring_ + size_t{at_} * kLineBytes),
                           __ATOMIC_ACQUIRE);
  }
  static uint32_t BytesOf(uint64_t commit) { return static_cast<uint16_t>(commit); }

  // Copies the frame out (`bytes` checked by the caller, at most a segment) and steps over it.
  // Private bytes are what makes parsing in place safe.
  void Take(uint64_t commit, uint32_t bytes, std::byte* to) {
    order_.Acquire();
    const std::byte* at = ring_ + size_t{at_} * kLineBytes;
    const uint32_t lines = LinesOf(bytes);
    memcpy(to, &commit, sizeof commit);
    memcpy(to + 8, at + 8, kLineBytes - 8);
    CopyLines(to + kLineBytes, at + kLineBytes, lines - 1);
    at_ = (at_ + lines) % kRingLines;
  }

 private:
  const std::byte* ring_ = nullptr;
  uint32_t at_ = 0;
  [[no_unique_address]] TsanOrder order_;
};

}  // namespace verbena::fabric::shm
