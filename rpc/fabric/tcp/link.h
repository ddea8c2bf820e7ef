#pragma once
// What a tcp fabric keeps for one link.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/status.h"
#include "rpc/base/ids.h"
#include "rpc/fabric/tcp/bulk_owner.h"
#include "rpc/fabric/tcp/bulk_reader.h"
#include "rpc/fabric/tcp/frame_stream.h"

namespace verbena::fabric::tcp {

// Bulk lanes per link and direction. The session uses one.
inline constexpr uint8_t kLanesMax = 4;

struct Link;

// This side's end of one bulk lane: the generation that is, or the last that was.
struct LaneEnd {
  Link* link = nullptr;
  Lane lane;
  bool completed = false;            // the session may use it; its connection may still be to come
  uint32_t broken_generation = 0;    // what comes late for this or an older one is closed
  std::unique_ptr<BulkOwner> owner;  // one of both, by role
  std::unique_ptr<BulkReader> reader;  //
  std::array<std::byte, kGreetingBytes> greeting;
  size_t greeting_left = 0;

  bool engaged = false;     // looked at every tick
  uint32_t idle_ticks = 0;  // since a byte moved
  bool out_armed = false;   // epoll says when the socket takes more

  bool exists() const { return owner != nullptr || reader != nullptr; }
  int fd() const { return owner != nullptr ? owner->fd() : reader != nullptr ? reader->fd() : -1; }
  // Something waits for the socket.
  bool blocked() const {
    return greeting_left > 0 || (owner != nullptr && owner->blocked()) ||
           (reader != nullptr && reader->blocked());
  }
  // Something is to do that waits for nobody.
  bool ready() const {
    if (fd() < 0 || blocked()) return false;
    return owner != nullptr ? owner->busy() : reader->unasked();
  }
};

struct Link {
  Link(LinkId id_in, uint64_t serial_in, FramePool& pool, ReceiveBuffers& buffers)
      : id(id_in), serial(serial_in), stream(pool, buffers) {
    for (LaneRole role : {LaneRole::kReader, LaneRole::kOwner}) {
      for (uint8_t index = 0; index < kLanesMax; ++index) {
        LaneEnd& end = ends[static_cast<size_t>(role)][index];
        end.link = this;
        end.lane = Lane{index, role, 0};
      }
    }
  }

  LaneEnd& EndOf(Lane lane) { return ends[static_cast<size_t>(lane.role)][lane.index]; }

  const LinkId id;
  const uint64_t serial;
  FrameStream stream;
  bool closing = false;
  bool down_queued = false;
  absl::Status cause;

  bool hot = false;     // had traffic lately
  bool active = false;  // since the last look at that
  uint64_t polled_tick = 0;
  bool wants_sendable = false;  // AcquireFrame failed
  bool backlogged = false;      // in the fabric's list
  uint32_t stalled_ticks = 0;   // since the backlog moved
  bool out_armed = false;
  bool in_epoll = false;  // else it is hot, and read directly until the fabric is armed

  std::array<std::array<LaneEnd, kLanesMax>, 2> ends;
};

}  // namespace verbena::fabric::tcp
