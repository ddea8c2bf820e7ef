#include "rpc/wire/frame.h"

namespace verbena::wire {
namespace {

// The shortest record of each known type; 0 = unknown.
constexpr uint16_t kMinimum[] = {
    /* kRequest   */ 16, /* kReply */ 8,      /* kMethod */ 16,
    /* kCancel */ 8,
    /* kRelease   */ 16, /* kRecall */ 16,    /* kReady */ 8,
    /* kPattern */ 16,
    /* kProved    */ 8,  /* kGoAway */ 8,     /* kGoAwayAck */ 8,
    /* kLaneDown */ 16,
    /* kLaneOffer */ 16, /* kLaneReady */ 16, /* kLeaseKeys */ 16,
};
constexpr uint8_t kFirst = static_cast<uint8_t>(RecordType::kRequest);

FrameError CheckRecord(RecordHeader header, size_t left) {
  if (header.bytes > left) return FrameError::kRecordTruncated;
  if (header.bytes % 8 != 0 || header.bytes < kRecordHeaderBytes) return FrameError::kRecordLength;
  const uint8_t type = static_cast<uint8_t>(header.type);
  const uint8_t index = static_cast<uint8_t>(type - kFirst);
  if (index >= sizeof(kMinimum) / sizeof(kMinimum[0])) {
    return (type & kCriticalBit) != 0 ? FrameError::kUnknownCritical : FrameError::kOk;
  }
  if (header.bytes < kMinimum[index]) return FrameError::kRecordLength;
  // Messages: padding within what follows their fixed header.
  const bool message = header.type == RecordType::kRequest || header.type == RecordType::kReply;
  const bool padded_short = message && (header.flags & 7) != 0 && header.bytes == kMinimum[index];
  return padded_short ? FrameError::kRecordLength : FrameError::kOk;
}

}  // namespace

const char* FrameErrorText(FrameError error) {
  switch (error) {
    case FrameError::kOk:
      return "no error";
    case FrameError::kNoHeader:
      return "bad frame header";
    case FrameError::kRecordTruncated:
      return "a record passes the end of its frame";
    case FrameError::kRecordLength:
      return "a record's length does not fit its type";
    case FrameError::kUnknownCritical:
      return "unknown critical record";
  }
  return "unknown frame error";
}

FrameError CheckFrame(absl::Span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) return FrameError::kNoHeader;
  const uint32_t word = Load<uint32_t>(frame.data());
  if (word != ((frame.size() & 0xffff) | uint32_t{kFrameMark} << 16)) return FrameError::kNoHeader;
  const std::byte* at = frame.data() + kFrameHeaderBytes;
  size_t left = frame.size() - kFrameHeaderBytes;
  while (left != 0) {
    if (left < kRecordHeaderBytes) return FrameError::kRecordTruncated;
    const RecordHeader header = Load<RecordHeader>(at);
    const FrameError error = CheckRecord(header, left);
    if (error != FrameError::kOk) return error;
    at += header.bytes;
    left -= header.bytes;
  }
  return FrameError::kOk;
}

}  // namespace verbena::wire
