#include "rpc/session/frame_writer.h"

#include <algorithm>

#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

FrameWriter::FrameWriter(LinkImpl& link, fabric::Fabric& fabric, LinkId id, uint32_t segment_bytes)
    : link_(link),
      fabric_(fabric),
      id_(id),
      publish_bytes_(std::max(fabric.traits().publish_bytes, wire::kFrameHeaderBytes + 1)),
      credits_(fabric.traits().slot_bytes, fabric.traits().window_slots) {
  frame_bytes_max_ =
      std::min({segment_bytes, fabric.traits().segment_bytes, credits_.FrameBytesAlways(),
                wire::kRecordBytesMax + wire::kFrameHeaderBytes}) &
      ~7u;
  VERBENA_CHECK(frame_bytes_max_ >= 4 * wire::kControlFrameBytes, "frames of ", frame_bytes_max_,
                " bytes");
}

std::byte* FrameWriter::ReserveSlow(uint32_t bytes, SendClass send_class) {
  VERBENA_DCHECK(bytes % 8 == 0 && bytes <= record_bytes_max(), "record of ", bytes);
  if (closed_) return nullptr;
  // Control records share a frame also where data may not join them.
  if (frame_.data != nullptr && frame_.bytes + bytes <= Limit(send_class)) {
    std::byte* const at = frame_.data + frame_.bytes;
    frame_.bytes += bytes;
    return at;
  }
  if (frame_.data != nullptr && frame_.bytes > wire::kFrameHeaderBytes) Publish();
  if (frame_.data == nullptr && !Open()) {
    stalled_ = true;
    return nullptr;
  }
  if (frame_.bytes + bytes > (send_class == SendClass::kData ? data_limit_ : Limit(send_class))) {
    stalled_ = true;
    link_.engine_impl().CountCreditStall();
    return nullptr;
  }
  std::byte* const at = frame_.data + frame_.bytes;
  frame_.bytes += bytes;
  return at;
}

bool FrameWriter::Open() {
  if (!fabric_.AcquireFrame(id_, frame_)) {
    frame_ = {};
    return false;
  }
  frame_.bytes = wire::kFrameHeaderBytes;
  UpdateDataLimit();
  link_.MarkDirty();
  return true;
}

uint32_t FrameWriter::Limit(SendClass send_class) const {
  if (hold_data_ && send_class == SendClass::kData) return 0;
  return std::min(std::min(frame_.capacity, frame_bytes_max_), credits_.FrameBytesMax(send_class));
}

void FrameWriter::UpdateDataLimit() {
  data_limit_ = frame_.data != nullptr ? Limit(SendClass::kData) : 0;
}

void FrameWriter::Publish() {
  wire::WriteFrameHeader(frame_.data, frame_.bytes, credits_.TakeGrant());
  credits_.OnSent(frame_.bytes);
  fabric_.Send(id_, {&frame_, 1});
  ++frames_sent_;
  frame_ = {};
  data_limit_ = 0;
}

void FrameWriter::Flush() {
  if (closed_) return;
  if (frame_.data != nullptr && frame_.bytes > wire::kFrameHeaderBytes) {
    Publish();
    return;
  }
  if (credits_.GrantDue()) {
    // Looked at before a frame is opened: that marks the link as one to flush, and a peer that has
    // stopped reading would keep us at it for ever.
    const bool may_leave = credits_.FrameBytesMax(SendClass::kGrant) >= wire::kFrameHeaderBytes;
    if (may_leave && (frame_.data != nullptr || Open())) {
      Publish();
      return;
    }
    stalled_ = true;
  }
  if (frame_.data != nullptr) {
    fabric_.Discard(id_, frame_);
    frame_ = {};
    data_limit_ = 0;
  }
}

void FrameWriter::HoldData(bool hold) {
  if (hold_data_ == hold) return;
  hold_data_ = hold;
  UpdateDataLimit();
}

bool FrameWriter::OnPeerGranted(uint32_t granted) {
  if (!credits_.OnPeerGranted(granted)) return false;
  if (frame_.data != nullptr) UpdateDataLimit();
  return true;
}

void FrameWriter::Close(bool discard) {
  if (frame_.data != nullptr && discard) fabric_.Discard(id_, frame_);
  frame_ = {};
  closed_ = true;
  data_limit_ = 0;
}

}  // namespace verbena::session
