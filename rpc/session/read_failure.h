#pragma once
// What users hear of READs that failed.
#include "absl/status/status.h"
#include "rpc/base/ids.h"
#include "rpc/session/transfers.h"

namespace verbena::session {

// Of no READ in particular.
absl::Status StatusOf(Error error);
// Names the READ, and where a copy faulted the end that it faulted at: the code is the device's
// own where a device of the destination's has failed, FAILED_PRECONDITION where the destination is
// not there any more, and DATA_LOSS where neither is so: the owner's memory, or its device, is at
// fault. Asks devices, for microseconds. Reactor thread only.
absl::Status ReadFailure(Error error, const Chunk& chunk, const Transfer& transfer);
// A device of the destination's has failed, as `why` says, before a stream got there.
absl::Status StreamFailure(const Transfer& transfer, const absl::Status& why);

}  // namespace verbena::session
