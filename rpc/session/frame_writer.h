#pragma once
// The open frame of one link: records are written straight into it. It leaves when it holds
// traits().publish_bytes, when the next record does not fit, and at the end of the tick. Reactor
// thread only.
//
// Where the fabric copies frames (traits().copied_bytes), a frame begins in memory of the writer's
// own, which is always at hand; a record that does not fit there gets a buffer of the fabric's. The
// frame before it leaves by itself, or goes on in that buffer where nothing leaves before the end
// of the tick anyway.
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

#include "rpc/fabric/fabric.h"
#include "rpc/session/credit_ledger.h"
#include "rpc/session/intrusive_list.h"

namespace verbena::session {

class LinkImpl;

class FrameWriter : public ListNode<FrameWriter> {
 public:
  // `dirty`: the writers that have something to flush at the end of the tick.
  FrameWriter(LinkImpl& link, List<FrameWriter>& dirty, fabric::Fabric& fabric, LinkId id,
              uint32_t segment_bytes);

  // Room for a record of `bytes` (a multiple of 8, at most record_bytes_max()) in the open frame.
  // Null: no credits or no buffer now; the link is resumed when that changes. Fill it, then call
  // Staged.
  std::byte* Reserve(uint32_t bytes, SendClass send_class) {
    const uint32_t end = frame_.bytes + bytes;
    if (end > data_limit_) [[unlikely]]
      return ReserveSlow(bytes, send_class);
    std::byte* const at = frame_.data + frame_.bytes;
    frame_.bytes = end;
    return at;
  }
  void Staged() {
    if (frame_.bytes >= publish_bytes_) {
      Publish();
    } else {
      MarkDirty();
    }
  }
  void MarkDirty() {
    if (!linked()) dirty_.PushBack(*this);
  }
  // The end of a tick: what is open leaves, and a grant that is due.
  void Flush();
  // While control records wait, data must not overtake them.
  void HoldData(bool hold);
  // False: see CreditLedger.
  bool OnPeerGranted(uint32_t granted) {
    if (!credits_.OnPeerGranted(granted)) return false;
    UpdateDataLimit();
    return true;
  }
  // Nothing leaves any more. `discard`: the fabric still knows the link.
  void Close(bool discard);

  CreditLedger& credits() { return credits_; }
  uint32_t record_bytes_max() const { return frame_bytes_max_ - wire::kFrameHeaderBytes; }
  bool stalled() const { return stalled_; }
  void ClearStalled() { stalled_ = false; }
  uint64_t frames_sent() const { return frames_sent_; }

 private:
  // A frame that holds a few calls, and leaves before it is full.
  static constexpr uint32_t kOwnBytes = 1024;

  std::byte* ReserveSlow(uint32_t bytes, SendClass send_class);
  // A buffer of the fabric's. False: there is none now.
  bool Acquire();
  void MoveToBuffer();
  void Publish();
  // What follows: an empty frame in memory of our own, or none.
  void OpenOwn();
  bool is_own() const { return frame_.data == own_.data(); }
  bool holds_records() const { return frame_.bytes > wire::kFrameHeaderBytes; }
  // Bytes that the open frame may reach.
  uint32_t Limit(SendClass send_class) const {
    if (hold_data_ && send_class == SendClass::kData) return 0;
    return std::min(room_, credits_.FrameBytesMax(send_class));
  }
  void UpdateDataLimit() { data_limit_ = Limit(SendClass::kData); }

  LinkImpl& link_;
  List<FrameWriter>& dirty_;
  fabric::Fabric& fabric_;
  const LinkId id_;
  fabric::OutFrame frame_;   // data null = none open
  uint32_t room_ = 0;        // of the open frame, never above frame_bytes_max_
  uint32_t data_limit_ = 0;  // Limit(kData), the least of all
  uint32_t publish_bytes_;
  bool gathers_;
  uint32_t frame_bytes_max_;
  uint32_t own_bytes_;  // 0: the fabric copies nothing
  bool hold_data_ = false;
  bool stalled_ = false;
  bool closed_ = false;
  uint64_t frames_sent_ = 0;
  CreditLedger credits_;
  alignas(64) std::array<std::byte, kOwnBytes> own_;
};

}  // namespace verbena::session
