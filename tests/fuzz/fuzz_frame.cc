// Frames as a peer sends them: the walk over the record headers, and every reader of a control
// record.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <vector>

#include "rpc/wire/control.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/message.h"

namespace {

using verbena::wire::MessageKind;
using verbena::wire::RecordHeader;
using verbena::wire::RecordType;

void ReadMessage(RecordHeader header, absl::Span<const std::byte> record) {
  const bool request = header.type == RecordType::kRequest;
  absl::Span<const std::byte> content = record.subspan(request ? verbena::wire::kRequestHeaderBytes
                                                               : verbena::wire::kReplyHeaderBytes);
  content.remove_suffix(header.flags & verbena::wire::kPaddingMask);
  verbena::wire::MessageView view;
  (void)verbena::wire::DecodeSections(request ? MessageKind::kRequest : MessageKind::kReply,
                                      header.flags, content, view);
}

void ReadRecord(RecordHeader header, absl::Span<const std::byte> record) {
  switch (header.type) {
    case RecordType::kRequest:
    case RecordType::kReply:
      ReadMessage(header, record);
      break;
    case RecordType::kMethod:
      (void)verbena::wire::ReadMethodPath(record);
      break;
    case RecordType::kPattern:
      (void)verbena::wire::ReadPattern(record);
      break;
    case RecordType::kLaneDown:
    case RecordType::kLaneOffer:
    case RecordType::kLaneReady:
      (void)verbena::wire::ReadLane(record);
      break;
    case RecordType::kLeaseKeys:
      (void)verbena::wire::ReadLeaseKeys(record);
      break;
    default:
      break;
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  // The fabric writes the length; the rest is the peer's.
  std::vector<std::byte> frame(size + verbena::wire::kFrameHeaderBytes);
  for (size_t i = 0; i < size; ++i)
    frame[verbena::wire::kFrameHeaderBytes + i] = static_cast<std::byte>(data[i]);
  verbena::wire::WriteFrameHeader(frame.data(), static_cast<uint32_t>(frame.size()), 0);
  if (verbena::wire::CheckFrame(frame) != verbena::wire::FrameError::kOk) {
    if (verbena::wire::FrameErrorText(frame) == "no error") std::abort();
    return 0;
  }
  for (verbena::wire::FrameCursor cursor(frame); !cursor.done();) {
    const RecordHeader header = cursor.header();
    ReadRecord(header, {cursor.data(), header.bytes});
    cursor.Next(header);
  }
  return 0;
}
