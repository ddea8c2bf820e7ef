#include "rpc/session/frame_writer.h"

#include <algorithm>
#include <cstring>

#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

FrameWriter::FrameWriter(LinkImpl& link, List<FrameWriter>& dirty, fabric::Fabric& fabric,
                         LinkId id, uint32_t segment_bytes)
    : link_(link),
      dirty_(dirty),
      fabric_(fabric),
      id_(id),
      publish_bytes_(std::max(fabric.traits().publish_bytes, wire::kFrameHeaderBytes + 1)),
      gathers_(fabric.traits().gathers_sends),
      credits_(fabric.traits().slot_bytes, fabric.traits().window_slots) {
  frame_bytes_max_ =
      std::min({segment_bytes, fabric.traits().segment_bytes, credits_.FrameBytesAlways(),
                wire::kRecordBytesMax + wire::kFrameHeaderBytes}) &
      ~7u;
  VERBENA_CHECK(frame_bytes_max_ >= 4 * wire::kControlFrameBytes, "frames of ", frame_bytes_max_,
                " bytes");
  own_bytes_ = std::min({kOwnBytes, fabric.traits().copied_bytes, frame_bytes_max_}) & ~7u;
  OpenOwn();
}

void FrameWriter::OpenOwn() {
  frame_ = {own_bytes_ != 0 && !closed_ ? own_.data() : nullptr, own_bytes_,
            wire::kFrameHeaderBytes, 0};
  room_ = closed_ ? 0 : own_bytes_;
  UpdateDataLimit();
}

std::byte* FrameWriter::ReserveSlow(uint32_t bytes, SendClass send_class) {
  VERBENA_DCHECK(bytes % 8 == 0 && bytes <= record_bytes_max(), "record of ", bytes);
  if (closed_) return nullptr;
  if (gathers_ && is_own() && holds_records() && frame_.bytes + bytes > room_) MoveToBuffer();
  // Control records share a frame also where data may not join them.
  if (frame_.bytes + bytes > Limit(send_class)) {
    if (holds_records()) Publish();
    if (frame_.bytes + bytes > room_ && !Acquire()) {
      stalled_ = true;
      return nullptr;
    }
    if (frame_.bytes + bytes > Limit(send_class)) {
      stalled_ = true;
      link_.engine_impl().CountCreditStall();
      ++link_.counted.credit_stalls;
      return nullptr;
    }
  }
  std::byte* const at = frame_.data + frame_.bytes;
  frame_.bytes += bytes;
  return at;
}

bool FrameWriter::Acquire() {
  fabric::OutFrame frame;
  if (!fabric_.AcquireFrame(id_, frame)) return false;
  frame_ = frame;
  frame_.bytes = wire::kFrameHeaderBytes;
  room_ = std::min(frame_.capacity, frame_bytes_max_);
  UpdateDataLimit();
  MarkDirty();
  return true;
}

// What is open goes on in a buffer, where there is one.
void FrameWriter::MoveToBuffer() {
  const uint32_t bytes = frame_.bytes;
  if (!Acquire()) return;
  std::memcpy(frame_.data + wire::kFrameHeaderBytes, own_.data() + wire::kFrameHeaderBytes,
              bytes - wire::kFrameHeaderBytes);
  frame_.bytes = bytes;
}

void FrameWriter::Publish() {
  wire::WriteFrameHeader(frame_.data, frame_.bytes, credits_.TakeGrant());
  credits_.OnSent(frame_.bytes);
  ++frames_sent_;
  if (is_own()) {
    fabric_.SendCopy(id_, frame_.data, frame_.bytes);
    frame_.bytes = wire::kFrameHeaderBytes;
    UpdateDataLimit();
  } else {
    fabric_.Send(id_, {&frame_, 1});
    OpenOwn();
  }
}

void FrameWriter::Flush() {
  if (closed_) return;
  if (holds_records()) return Publish();
  if (credits_.GrantDue()) {
    // Looked at before a frame is opened: that marks the link as one to flush, and a peer that has
    // stopped reading would keep us at it for ever.
    const bool may_leave = credits_.FrameBytesMax(SendClass::kGrant) >= wire::kFrameHeaderBytes;
    if (may_leave && (frame_.data != nullptr || Acquire())) return Publish();
    stalled_ = true;
  }
  if (frame_.data != nullptr && !is_own()) {
    fabric_.Discard(id_, frame_);
    OpenOwn();
  }
}

void FrameWriter::HoldData(bool hold) {
  if (hold_data_ == hold) return;
  hold_data_ = hold;
  UpdateDataLimit();
}

void FrameWriter::Close(bool discard) {
  if (frame_.data != nullptr && !is_own() && discard) fabric_.Discard(id_, frame_);
  closed_ = true;
  OpenOwn();
}

}  // namespace verbena::session
