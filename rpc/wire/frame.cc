#include "rpc/wire/frame.h"

namespace verbena::wire {

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

FrameError internal::WhyBad(RecordHeader header, size_t left) {
  if (left < kRecordHeaderBytes || header.bytes > left) return FrameError::kRecordTruncated;
  if (header.bytes % 8 != 0 || header.bytes < kRecordHeaderBytes) return FrameError::kRecordLength;
  return kShortest[static_cast<uint8_t>(header.type)] == kNoLength ? FrameError::kUnknownCritical
                                                                   : FrameError::kRecordLength;
}

}  // namespace verbena::wire
