#pragma once
// What a verbs fabric, which is one reactor's use of one device, counts. Written by the reactor
// only. What the device itself counts, RNR NAKs and retries, is in sysfs.h. Includes no verbs
// header.
#include <cstdint>

#include "rpc/fabric/link_counters.h"

namespace verbena::fabric::verbs {

struct FabricCounters {
  LinkCounters links;              // added up, with those that are gone
  uint64_t stale_completions = 0;  // of a queue pair that is gone
  uint64_t links_refused = 0;      // more than fit
  uint64_t receive_bytes = 0;      // the receive pool
  uint64_t queue_pairs = 0;        // there now, of links that have started
  uint64_t windows = 0;            // memory windows there now
  uint64_t windows_used = 0;       // of these, those that are or were a lease's
};

}  // namespace verbena::fabric::verbs
