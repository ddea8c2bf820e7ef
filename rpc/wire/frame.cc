#include "rpc/wire/frame.h"

#include "absl/strings/str_cat.h"

namespace verbena::wire {
namespace {

std::string HeaderErrorText(absl::Span<const std::byte> frame) {
  if (frame.size() < kFrameHeaderBytes) {
    return absl::StrCat("bad frame header: a frame of ", frame.size(), " bytes, at least ",
                        kFrameHeaderBytes);
  }
  return absl::StrCat("bad frame header: a frame of ", frame.size(), " bytes says ",
                      Load<uint16_t>(frame.data()), " modulo 65536, and the mark 0x",
                      absl::Hex(Load<uint16_t>(frame.data() + 2)), " for 0x",
                      absl::Hex(kFrameMark));
}

std::string RecordErrorText(FrameError error, RecordHeader header, size_t left) {
  if (left < kRecordHeaderBytes) {
    return absl::StrCat("a record's header of ", kRecordHeaderBytes,
                        " bytes passes the end of its frame, ", left, " are left");
  }
  const uint8_t type = static_cast<uint8_t>(header.type);
  const std::string record =
      absl::StrCat("a record of type 0x", absl::Hex(type), " and ", header.bytes, " bytes");
  if (error == FrameError::kUnknownCritical)
    return absl::StrCat("unknown critical record: ", record);
  if (error == FrameError::kRecordTruncated)
    return absl::StrCat(record, " passes the end of its frame, ", left, " are left");
  return absl::StrCat(record, ", whose length is no multiple of 8, or less than ",
                      internal::kShortest[type], " and its padding");
}

}  // namespace

FrameError internal::WhyBad(RecordHeader header, size_t left) {
  if (left < kRecordHeaderBytes || header.bytes > left) return FrameError::kRecordTruncated;
  if (header.bytes % 8 != 0 || header.bytes < kRecordHeaderBytes) return FrameError::kRecordLength;
  return kShortest[static_cast<uint8_t>(header.type)] == kNoLength ? FrameError::kUnknownCritical
                                                                   : FrameError::kRecordLength;
}

std::string FrameErrorText(absl::Span<const std::byte> frame) {
  const FrameError error = CheckFrame(frame);
  if (error == FrameError::kOk) return "no error";
  if (error == FrameError::kNoHeader) return HeaderErrorText(frame);
  for (size_t at = kFrameHeaderBytes;;) {  // up to the record that does not fit: there is one
    const size_t left = frame.size() - at;
    RecordHeader header;
    if (left >= kRecordHeaderBytes) header = Load<RecordHeader>(frame.data() + at);
    if (!internal::Fits(header, left)) return RecordErrorText(error, header, left);
    at += header.bytes;
  }
}

}  // namespace verbena::wire
