#pragma once
// What one opened device can do: by asking it, and by making a QP and throwing it away.
#include <infiniband/verbs.h>

#include "absl/status/statusor.h"
#include "rpc/fabric/verbs/device_limits.h"

namespace verbena::fabric::verbs {

// What the device's own numbers say; the rest stays as it is. `message_bytes`: the least of its
// ports.
DeviceLimits LimitsOf(const ibv_device_attr& attributes, uint64_t message_bytes);

// The same by asking it, with the inline size and dma-buf tried out (a few ms). Any thread.
absl::StatusOr<DeviceLimits> ProbeLimits(ibv_context* context);

// What registering a bad descriptor failed with says of dma-buf.
void ReadDmabufAnswer(int error, DeviceLimits& limits);

}  // namespace verbena::fabric::verbs
