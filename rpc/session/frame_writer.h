#pragma once
// The open frame of one link: records are written straight into the fabric's buffer, which leaves
// when it holds traits().publish_bytes, when the next record does not fit, and at the end of the
// tick. Reactor thread only.
#include <cstddef>
#include <cstdint>

#include "rpc/fabric/fabric.h"
#include "rpc/session/credit_ledger.h"

namespace verbena::session {

class LinkImpl;

class FrameWriter {
 public:
  FrameWriter(LinkImpl& link, fabric::Fabric& fabric, LinkId id, uint32_t segment_bytes);

  // Room for a record of `bytes` (a multiple of 8, at most record_bytes_max()) in the open frame.
  // Null: no credits or no buffer now; the link is resumed when that changes. Fill it, then call
  // Staged.
  std::byte* Reserve(uint32_t bytes, SendClass send_class) {
    const uint32_t end = frame_.bytes + bytes;
    if (end > data_limit_) return ReserveSlow(bytes, send_class);
    std::byte* const at = frame_.data + frame_.bytes;
    frame_.bytes = end;
    return at;
  }
  void Staged() {
    if (frame_.bytes >= publish_bytes_) Publish();
  }
  // The end of a tick: what is open leaves, and a grant that is due.
  void Flush();
  // While control records wait, data must not overtake them.
  void HoldData(bool hold);
  // False: see CreditLedger.
  bool OnPeerGranted(uint32_t granted);
  // Nothing leaves any more. `discard`: the fabric still knows the link.
  void Close(bool discard);

  CreditLedger& credits() { return credits_; }
  uint32_t record_bytes_max() const { return frame_bytes_max_ - wire::kFrameHeaderBytes; }
  bool stalled() const { return stalled_; }
  void ClearStalled() { stalled_ = false; }
  uint64_t frames_sent() const { return frames_sent_; }

 private:
  std::byte* ReserveSlow(uint32_t bytes, SendClass send_class);
  bool Open();
  void Publish();
  // Bytes that the open frame may reach.
  uint32_t Limit(SendClass send_class) const;
  void UpdateDataLimit();

  LinkImpl& link_;
  fabric::Fabric& fabric_;
  const LinkId id_;
  fabric::OutFrame frame_;   // data null = none open
  uint32_t data_limit_ = 0;  // Limit(kData), the least of all; 0 = no frame is open
  uint32_t publish_bytes_;
  uint32_t frame_bytes_max_;
  bool hold_data_ = false;
  bool stalled_ = false;
  bool closed_ = false;
  uint64_t frames_sent_ = 0;
  CreditLedger credits_;
};

}  // namespace verbena::session
