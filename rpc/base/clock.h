#pragma once
// The library's steady clock: nanoseconds since an arbitrary moment of this process. Reads the time
// stamp counter where it is invariant (half the cost of clock_gettime), else CLOCK_MONOTONIC. The
// two drift apart by some parts in 10^5, so never mix this with another clock: convert a duration,
// not a point in time.
#include <cstdint>

namespace verbena {

// Any thread. The first call of the process takes 2 ms to calibrate.
int64_t SteadyNs();

}  // namespace verbena
