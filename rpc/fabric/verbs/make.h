#pragma once
// The verbs fabric of one reactor, as the machine and the environment would have it. Includes no
// verbs header.
#include <functional>
#include <memory>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "rpc/fabric/fabric.h"

namespace verbena::fabric::verbs {

struct MakeOptions {
  std::function<void(absl::AnyInvocable<void() &&>)> post_setup;
  int numa_node = -1;  // of the reactor: its nearest NIC is taken
};

// Any thread; the first call opens the devices and tries what they do, which takes some ms. The
// environment has its say (settings.h):
//   VERBENA_VERBS_DEVICE, VERBENA_VERBS_GID_INDEX, VERBENA_VERBS_PKEY  as port_filter.h
//   VERBENA_VERBS_REVOCATION     window, lease-mr or lane: how leases are taken back
//   VERBENA_VERBS_TRAFFIC_CLASS, VERBENA_VERBS_SERVICE_LEVEL
//   VERBENA_VERBS_SRQ=0          receives of each queue pair's own
//   VERBENA_VERBS_BATCH=0        each message in a frame of its own; for measuring
//   VERBENA_VERBS_GPUDIRECT=0    no NIC reads or writes a GPU's memory by itself
//   VERBENA_VERBS_GPUDIRECT_BYTES_MAX  of a GPU's memory that is registered with NICs at a time
//   VERBENA_VERBS_COPIED_BYTES_MAX  of device memory that is leased by way of host memory, per
//                                reactor
// NOT_FOUND: there is no device. Others: there is one that cannot be used, or the environment
// demands what is not there or makes no sense, and what.
absl::StatusOr<std::unique_ptr<Fabric>> Make(const MakeOptions& options);

}  // namespace verbena::fabric::verbs
