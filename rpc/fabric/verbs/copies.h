#pragma once
// Copies of memory that a device cannot pin, for the leases of it: before Linux 6.2, for instance,
// a file that is mapped shared and read-only. A peer READs what was there when the lease was made.
#include <infiniband/verbs.h>

#include <cstddef>

#include "absl/status/statusor.h"

namespace verbena::fabric::verbs {

// Registers a copy of [data, data + bytes), which a peer may READ; the registration's address is
// the copy's. What it costs besides the registration: as many bytes, which no pool counts.
// INVALID_ARGUMENT: there is no such memory (a file was cut off, too). RESOURCE_EXHAUSTED. Setup
// thread only.
absl::StatusOr<ibv_mr*> RegisterCopy(ibv_pd* pd, const std::byte* data, size_t bytes);

// Undoes a registration, and frees the copy if it is one's. Setup thread only.
void DeregisterWithCopy(ibv_mr* mr);

}  // namespace verbena::fabric::verbs
