#pragma once
// A frame: an 8-byte header and records. PROTOCOL.md beside this file says what each field means,
// from the sender's side.
//
//   offset 0  u16  bytes of the frame modulo 65536 (the fabric writes it)
//          2  u8   kFrameMark: makes the first word of a frame non-zero, always
//          3  u8   reserved, 0
//          4  u32  slots that the sender has granted the receiver since the link began, modulo 2^32
//
// Records follow, each a multiple of 8 bytes. CheckFrame walks all their headers, so that a
// receiver acts on none of them when one is bad; afterwards FrameCursor needs no further checks of
// lengths.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/types/span.h"

namespace verbena::wire {

static_assert(std::endian::native == std::endian::little, "integers are little endian on the wire");

inline constexpr uint32_t kFrameHeaderBytes = 8;
inline constexpr uint8_t kFrameMark = 0x56;
// What the smallest receive window must take whole: control records stay below, so that a reserve
// of such frames is enough.
inline constexpr uint32_t kControlFrameBytes = 64;

template <class T>
T Load(const std::byte* from) {
  T value;
  std::memcpy(&value, from, sizeof(T));
  return value;
}
template <class T>
void Store(std::byte* to, T value) {
  std::memcpy(to, &value, sizeof(T));
}
constexpr size_t RoundUp8(size_t bytes) { return (bytes + 7) & ~size_t{7}; }

inline void WriteFrameHeader(std::byte* frame, uint32_t bytes, uint32_t granted) {
  Store(frame, uint64_t{granted} << 32 | uint64_t{kFrameMark} << 16 | (bytes & 0xffff));
}

// The high bit of a type says critical: who does not know it closes the link. Others are skipped.
enum class RecordType : uint8_t {
  kPadding = 0x00,
  kRequest = 0x81,
  kReply = 0x82,
  kMethod = 0x83,
  kCancel = 0x84,
  kRelease = 0x85,
  kRecall = 0x86,
  kReady = 0x87,
  kPattern = 0x88,
  kProved = 0x89,
  kGoAway = 0x8a,
  kGoAwayAck = 0x8b,
  kLaneDown = 0x8c,
  kLaneOffer = 0x8d,
  kLaneReady = 0x8e,
  kLeaseKeys = 0x8f,
};
inline constexpr uint8_t kCriticalBit = 0x80;

// Every record: type, flags, its bytes with this header (a multiple of 8), and a word of the type's
// own.
inline constexpr uint32_t kRecordHeaderBytes = 8;
struct RecordHeader {
  RecordType type = RecordType::kPadding;
  uint8_t flags = 0;
  uint16_t bytes = 0;
  uint32_t word = 0;
};
static_assert(sizeof(RecordHeader) == kRecordHeaderBytes);

// The largest record, so that `bytes` never wraps.
inline constexpr uint32_t kRecordBytesMax = 65528;

enum class FrameError : uint8_t {
  kOk = 0,
  kNoHeader,         // shorter than a frame header, or its mark or length is wrong
  kRecordTruncated,  // a record's header or body passes the end of the frame
  kRecordLength,     // not a multiple of 8, or too short for its type
  kUnknownCritical,
};
// What is wrong with a frame that CheckFrame refuses, in words: the values, and what they had to
// be.
std::string FrameErrorText(absl::Span<const std::byte> frame);

namespace internal {

inline constexpr uint32_t kNoLength = UINT32_MAX;

// The shortest record of each type; kNoLength: unknown and critical, so that none is long enough.
constexpr std::array<uint32_t, 256> ShortestRecords() {
  std::array<uint32_t, 256> shortest{};
  for (uint32_t type = 0; type < 256; ++type)
    shortest[type] = (type & kCriticalBit) != 0 ? kNoLength : kRecordHeaderBytes;
  using enum RecordType;
  for (RecordType type : {kReply, kCancel, kReady, kProved, kGoAway, kGoAwayAck})
    shortest[static_cast<uint8_t>(type)] = 8;
  for (RecordType type : {kRequest, kMethod, kRelease, kRecall, kPattern, kLaneDown, kLaneOffer,
                          kLaneReady, kLeaseKeys})
    shortest[static_cast<uint8_t>(type)] = 16;
  return shortest;
}
inline constexpr std::array<uint32_t, 256> kShortest = ShortestRecords();

// Whether a record's length suits its type and what is left of the frame.
inline bool Fits(RecordHeader header, size_t left) {
  // A message's padding lies within what follows its fixed header.
  const bool message = header.type == RecordType::kRequest || header.type == RecordType::kReply;
  const uint32_t more = message && (header.flags & 7) != 0 ? 1 : 0;
  return header.bytes <= left && header.bytes % 8 == 0 &&
         header.bytes >= uint64_t{kShortest[static_cast<uint8_t>(header.type)]} + more;
}
// Of one that does not.
FrameError WhyBad(RecordHeader header, size_t left);

}  // namespace internal

// Checks the header and all record headers. Any bytes are allowed as input.
inline FrameError CheckFrame(absl::Span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) return FrameError::kNoHeader;
  const uint32_t word = Load<uint32_t>(frame.data());
  if (word != ((frame.size() & 0xffff) | uint32_t{kFrameMark} << 16)) return FrameError::kNoHeader;
  const std::byte* at = frame.data() + kFrameHeaderBytes;
  for (size_t left = frame.size() - kFrameHeaderBytes; left != 0;) {
    RecordHeader header;
    if (left >= kRecordHeaderBytes) header = Load<RecordHeader>(at);
    if (!internal::Fits(header, left)) [[unlikely]]
      return internal::WhyBad(header, left);
    at += header.bytes;
    left -= header.bytes;
  }
  return FrameError::kOk;
}

inline uint32_t FrameGranted(absl::Span<const std::byte> frame) {
  return Load<uint32_t>(frame.data() + 4);
}

// The records of a frame that CheckFrame found good.
class FrameCursor {
 public:
  explicit FrameCursor(absl::Span<const std::byte> frame)
      : at_(frame.data() + kFrameHeaderBytes), end_(frame.data() + frame.size()) {}
  bool done() const { return at_ == end_; }
  RecordHeader header() const { return Load<RecordHeader>(at_); }
  const std::byte* data() const { return at_; }
  void Next(const RecordHeader& header) { at_ += header.bytes; }

 private:
  const std::byte* at_;
  const std::byte* end_;
};

}  // namespace verbena::wire
