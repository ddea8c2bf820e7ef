#pragma once
// What a verbs fabric counts. Written by the reactor only. Includes no verbs header.
#include <cstdint>

namespace verbena::fabric::verbs {

// Of one link, and, added up, of a fabric.
struct LinkCounters {
  uint64_t sends = 0;  // frames handed to the NIC
  uint64_t send_bytes = 0;
  uint64_t inline_sends = 0;
  uint64_t doorbells = 0;  // chains of sends
  uint64_t receives = 0;
  uint64_t reads = 0;  // READ work requests
  uint64_t read_bytes = 0;
  uint64_t send_waits = 0;  // no buffer, or the send queue was full
  uint64_t lanes_broken = 0;
  uint64_t window_leases = 0;
  uint64_t registered_leases = 0;  // a registration each
  uint64_t lane_leases = 0;

  void Add(const LinkCounters& other) {
    sends += other.sends;
    send_bytes += other.send_bytes;
    inline_sends += other.inline_sends;
    doorbells += other.doorbells;
    receives += other.receives;
    reads += other.reads;
    read_bytes += other.read_bytes;
    send_waits += other.send_waits;
    lanes_broken += other.lanes_broken;
    window_leases += other.window_leases;
    registered_leases += other.registered_leases;
    lane_leases += other.lane_leases;
  }
};

struct FabricCounters {
  LinkCounters links;
  uint64_t stale_completions = 0;  // of a queue pair that is gone
  uint64_t links_refused = 0;      // more than fit
  uint64_t receive_bytes = 0;      // the receive pool
  uint64_t queue_pairs = 0;        // there now, of links that have started
  uint64_t windows = 0;            // memory windows there now
  uint64_t windows_used = 0;       // of these, those that are or were a lease's
};

}  // namespace verbena::fabric::verbs
