#pragma once
// What a link did since it began, as far as its fabric counts it: over verbs all of this, elsewhere
// nothing. Written by the reactor only.
#include <cstdint>

namespace verbena::fabric {

struct LinkCounters {
  uint64_t sends = 0;  // frames handed to the NIC
  uint64_t send_bytes = 0;
  uint64_t inline_sends = 0;
  uint64_t doorbells = 0;   // chains of sends
  uint64_t send_ticks = 0;  // ticks, from one poll to the next, in which there was one
  uint64_t receives = 0;
  uint64_t reads = 0;  // READ work requests
  uint64_t read_bytes = 0;
  uint64_t read_doorbells = 0;  // chains of READs
  uint64_t send_waits = 0;      // no buffer, or the send queue was full
  uint64_t lanes_broken = 0;    // ends of bulk lanes that went down before their link
  uint64_t window_leases = 0;
  uint64_t registered_leases = 0;  // a registration each
  uint64_t lane_leases = 0;

  void Add(const LinkCounters& other) {
    sends += other.sends;
    send_bytes += other.send_bytes;
    inline_sends += other.inline_sends;
    doorbells += other.doorbells;
    send_ticks += other.send_ticks;
    receives += other.receives;
    reads += other.reads;
    read_bytes += other.read_bytes;
    read_doorbells += other.read_doorbells;
    send_waits += other.send_waits;
    lanes_broken += other.lanes_broken;
    window_leases += other.window_leases;
    registered_leases += other.registered_leases;
    lane_leases += other.lane_leases;
  }
};

}  // namespace verbena::fabric
