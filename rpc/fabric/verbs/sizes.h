#pragma once
// How large a fabric's queues are, from the limits of the library and of the device. One control CQ
// and one bulk CQ per fabric; each holds every completion that could ever be in it at once, also
// when all queue pairs fail together, since an overrun of a CQ takes every queue pair of it.
#include <cstdint>

#include "absl/status/statusor.h"
#include "rpc/fabric/verbs/device_limits.h"

namespace verbena::fabric::verbs {

// With an SRQ, receives above the sum of all windows: as many buffers may wait until they are
// posted again together, and every frame that a peer has credits for still finds one.
inline constexpr uint32_t kReceivesSpare = 16;
// What a 32-byte call's frame takes many times over; a larger frame is as well fetched by the NIC.
inline constexpr uint32_t kInlineBytes = 220;

struct Sizes {
  bool srq = true;  // else each queue pair has receives of its own
  uint32_t links_max = 0;
  uint32_t receives_per_link = 0;  // the window, and one for the link's last word
  uint32_t receives_spare = 0;     // kReceivesSpare, or 0 without an SRQ
  uint32_t srq_entries = 0;        // 0 without an SRQ
  uint32_t control_work = 0;       // of each control queue pair's send queue
  uint32_t bulk_work = 0;          // of each bulk queue pair's
  uint32_t control_cq_entries = 0;
  uint32_t bulk_cq_entries = 0;
  uint32_t inline_bytes = 0;    // of a SEND; frames up to it are copied
  uint32_t sge = 1;             // local pieces of one READ
  uint32_t read_depth_out = 0;  // READs that a queue pair has under way, and answers
  uint32_t read_depth_in = 0;
};

// For as many links as the device carries, at most `links_wanted`. A link has a control lane and,
// in each direction, a bulk lane and the one that it replaces. RESOURCE_EXHAUSTED: the device has
// no room for a single link; names the limit.
absl::StatusOr<Sizes> PlanSizes(const DeviceLimits& device, uint32_t links_wanted);

}  // namespace verbena::fabric::verbs
