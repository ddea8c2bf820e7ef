#pragma once
// shm::Segment: the memory of one end of a link. Its owner alone writes it: the ring of frames that
// it sends, its control lines, the table of what it leases. The peer maps it read-only, and
// F_SEAL_FUTURE_WRITE keeps it so; so nothing that a peer does can change what this side wrote.
//
//   file: [ring 16 KiB][control 256 B][desk][leases]
//   mapping: [ring][ring again][control][desk][leases]
//
// The ring is mapped twice in a row, so that a frame that wraps is one range. Pages of the table
// that hold no lease are never touched and take no memory. A mapping of a sealed memfd cannot
// fault: the file cannot shrink (F_SEAL_SHRINK), and it lives as long as any mapping does, whoever
// dies.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/status/statusor.h"

namespace verbena::fabric::shm {

inline constexpr uint32_t kLineBytes = 64;
inline constexpr uint32_t kRingLines = 256;
inline constexpr size_t kRingBytes = size_t{kRingLines} * kLineBytes;
inline constexpr size_t kTableBytes = 256 * 1024;
inline constexpr size_t kSegmentFileBytes = kRingBytes + kTableBytes;

// Written by the segment's owner, read by the peer. `sleeping` and `closed` share a line: the peer
// looks at both.
struct Control {
  alignas(64) std::atomic<uint32_t> sleeping;  // 1: ring the bell after sending
  std::atomic<uint32_t> closed;                // 1: the owner sends nothing any more
  alignas(64) std::atomic<uint32_t> cpu;       // where the owner last polled
  alignas(64) std::byte nonce[16];             // proves that the peer sees this page
  std::atomic<uint32_t> reads_process;         // 1: the owner can read the peer's private memory
  alignas(64) std::byte reserved[64];
};
static_assert(sizeof(Control) == 256);

// READs of memory that the reader cannot map: it asks for ranges, which the owner copies to stages
// that both map (stage_server.h). And the holds of copies that wait for a stream of the reader's.
// What a slot says is written before its sequence, or its word.
inline constexpr uint32_t kStages = 8;
inline constexpr uint32_t kHolds = 32;
struct alignas(64) StageRequest {
  std::atomic<uint64_t> sequence;  // counts up; the slot's last answer is done with
  std::atomic<uint64_t> word;      // of the lease, and where it stands in the owner's table
  std::atomic<uint64_t> entry;
  std::atomic<uint64_t> offset;  // in the lease
  std::atomic<uint64_t> bytes;
};
struct alignas(64) StageAnswer {
  std::atomic<uint64_t> sequence;  // of the request
  std::atomic<uint64_t> error;     // verbena::Error
  std::atomic<uint64_t> buffer;    // what was exported, and where in it the bytes lie
  std::atomic<uint64_t> start;
};
struct Hold {
  std::atomic<uint64_t> word;  // of the peer's lease; 0 = none
  std::atomic<uint64_t> entry;
};
struct Desk {
  alignas(64) std::atomic<uint64_t> asked;  // counts up when there are new requests
  StageRequest requests[kStages];
  StageAnswer answers[kStages];  // to the peer's requests
  Hold holds[kHolds];
};

// One lease. word: generation:40 | revoked:1 | holds:23. The others do not change while the word
// says that it is live.
struct LeaseEntry {
  std::atomic<uint64_t> word;
  std::atomic<uint64_t> start;  // in the exported extent, or the address in the owner
  std::atomic<uint64_t> bytes;
  std::atomic<uint64_t> buffer;  // what was exported; 0 = by address
};
inline constexpr uint32_t kLeasesMax =
    (kTableBytes - sizeof(Control) - sizeof(Desk)) / sizeof(LeaseEntry);

class Segment {
 public:
  Segment() = default;
  Segment(Segment&& other) noexcept
      : base_(std::exchange(other.base_, nullptr)), fd_(std::exchange(other.fd_, -1)) {}
  Segment& operator=(Segment&& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Segment();

  // A new one, sealed, writable here. RESOURCE_EXHAUSTED names the system's reason.
  static absl::StatusOr<Segment> Create();
  // A peer's, read-only. Takes `fd`. INVALID_ARGUMENT when its seals or its size are not those of a
  // segment.
  static absl::StatusOr<Segment> Open(int fd);

  // The memfd of a created one, once; the caller owns it.
  int TakeFd() { return std::exchange(fd_, -1); }

  std::byte* ring() const { return base_; }
  Control& control() const { return *reinterpret_cast<Control*>(base_ + 2 * kRingBytes); }
  Desk& desk() const { return *reinterpret_cast<Desk*>(base_ + 2 * kRingBytes + sizeof(Control)); }
  LeaseEntry* leases() const {
    return reinterpret_cast<LeaseEntry*>(base_ + 2 * kRingBytes + sizeof(Control) + sizeof(Desk));
  }

 private:
  static absl::StatusOr<Segment> Map(int fd, int protection);

  std::byte* base_ = nullptr;
  int fd_ = -1;
};

// What a descriptor from a peer must be before it is mapped: a memfd that cannot shrink, of
// pages that a fault can always make. Returns its size.
absl::StatusOr<uint64_t> CheckSealed(int fd, int seals);

}  // namespace verbena::fabric::shm
