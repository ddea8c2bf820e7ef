#pragma once
// Credits of one link, both directions, in slots of traits().slot_bytes. Counters are cumulative
// and wrap.
//
// A frame of n slots leaves when it leaves at least this many: 2C if it carries data, C if it
// carries only control records, 0 if it is nothing but a grant that is due; C is what a control
// frame takes. A grant is due when half of the window was consumed. So a side with less than C
// credits has a peer that owes it a grant and kept the credits to send it.
#include <bit>
#include <cstdint>
#include <string>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/fabric.h"
#include "rpc/wire/frame.h"

namespace verbena::session {

enum class SendClass : uint8_t { kData = 0, kControl = 1, kGrant = 2 };

class CreditLedger {
 public:
  CreditLedger(uint32_t slot_bytes, uint32_t window_slots)
      : shift_(static_cast<uint32_t>(std::countr_zero(slot_bytes))),
        window_(window_slots),
        control_slots_(SlotsFor(wire::kControlFrameBytes)),
        peer_granted_(window_slots),
        granted_(window_slots) {
    VERBENA_CHECK(std::has_single_bit(slot_bytes), "slots of ", slot_bytes, " bytes");
    VERBENA_CHECK(window_slots >= 8 * control_slots_, "a window of ", window_slots, " slots");
  }

  uint32_t SlotsFor(uint32_t bytes) const { return (bytes + (1u << shift_) - 1) >> shift_; }

  // ---- sending
  uint32_t available() const { return peer_granted_ - sent_; }
  // The largest frame of that class that may leave now.
  uint32_t FrameBytesMax(SendClass send_class) const {
    const uint32_t reserve = (2 - static_cast<uint32_t>(send_class)) * control_slots_;
    return available() > reserve ? (available() - reserve) << shift_ : 0;
  }
  // The largest frame that can always leave some time: whatever the peer holds back without owing a
  // grant.
  uint32_t FrameBytesAlways() const { return (window_ / 2 - 2 * control_slots_) << shift_; }
  void OnSent(uint32_t bytes) {
    sent_ += SlotsFor(bytes);
    VERBENA_DCHECK(static_cast<int32_t>(peer_granted_ - sent_) >= 0,
                   "credits overrun by ourselves");
  }
  // False: the peer took credits back, or granted more than its window.
  bool OnPeerGranted(uint32_t granted) {
    if (static_cast<int32_t>(granted - peer_granted_) < 0) return false;
    if (static_cast<int32_t>(granted - sent_ - window_) > 0) return false;
    peer_granted_ = granted;
    return true;
  }

  // ---- receiving
  // False: the peer sent more than it was granted.
  bool OnReceived(uint32_t bytes) {
    received_ += SlotsFor(bytes);
    return static_cast<int32_t>(granted_ - received_) >= 0;
  }
  // What OnReceived refused, in words.
  std::string OverrunText() const {
    return absl::StrCat(received_ - granted_, " slots of ", 1u << shift_, " bytes beyond the ",
                        window_, " that it may have in flight");
  }
  // What OnPeerGranted refused, in words.
  std::string BadGrantText(uint32_t granted) const {
    return absl::StrCat(granted, " after ", peer_granted_, ", with ", sent_, " used and at most ",
                        window_, " more");
  }
  // All slots received so far may be granted again.
  void OnConsumed() { consumed_ = received_; }
  bool GrantDue() const { return consumed_ + window_ - granted_ >= window_ / 2; }
  // What the next frame says; it counts as said.
  uint32_t TakeGrant() { return granted_ = consumed_ + window_; }

 private:
  uint32_t shift_;
  uint32_t window_;
  uint32_t control_slots_;
  uint32_t sent_ = 0;
  uint32_t peer_granted_;
  uint32_t received_ = 0;
  uint32_t consumed_ = 0;
  uint32_t granted_;
};

}  // namespace verbena::session
