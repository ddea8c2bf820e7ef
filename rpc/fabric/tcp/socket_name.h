#pragma once
// How epoll names a socket of the tcp fabric: by link, part of the link's serial, and lane, so that
// news of a socket that is gone is told from news of its successor.
#include <cstdint>

#include "rpc/base/ids.h"

namespace verbena::fabric::tcp {

struct SocketName {
  static constexpr uint32_t kSerialMask = 0xffffff;
  static constexpr uint8_t kControl = 0xff;

  LinkId link = LinkId::kNone;
  uint32_t serial = 0;      // of kSerialMask
  uint8_t lane = kControl;  // role << 4 | index

  static SocketName Control(LinkId link, uint64_t serial) {
    return {link, static_cast<uint32_t>(serial) & kSerialMask, kControl};
  }
  static SocketName Bulk(LinkId link, uint64_t serial, Lane lane) {
    const int role = lane.role == LaneRole::kOwner ? 1 : 0;
    return {link, static_cast<uint32_t>(serial) & kSerialMask,
            static_cast<uint8_t>(role << 4 | lane.index)};
  }
  uint64_t word() const {
    return uint64_t{static_cast<uint32_t>(link)} << 32 | uint64_t{serial} << 8 | lane;
  }
  static SocketName FromWord(uint64_t word) {
    return {static_cast<LinkId>(word >> 32), static_cast<uint32_t>(word >> 8) & kSerialMask,
            static_cast<uint8_t>(word)};
  }
  bool control() const { return lane == kControl; }
  LaneRole role() const { return (lane >> 4) != 0 ? LaneRole::kOwner : LaneRole::kReader; }
  uint8_t index() const { return lane & 0xf; }
};

}  // namespace verbena::fabric::tcp
