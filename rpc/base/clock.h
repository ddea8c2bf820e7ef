#pragma once
// The library's steady clock: nanoseconds since an arbitrary moment of this process. Reads the time
// stamp counter where it is invariant (half the cost of clock_gettime), else CLOCK_MONOTONIC. The
// two drift apart by some parts in 10^5, so never mix this with another clock: convert a duration,
// not a point in time.
#include <algorithm>
#include <atomic>
#include <cstdint>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace verbena {

namespace internal {

// ns = base_ns + (counter - base_counter) * multiplier / 2^32. multiplier is written last; 0 = not
// calibrated yet, or the counter is not usable.
struct ClockScale {
  std::atomic<uint64_t> multiplier{0};
  uint64_t base_counter = 0;
  int64_t base_ns = 0;
};
extern ClockScale clock_scale;
// Calibrates at its first call.
int64_t SteadyNsSlow();

}  // namespace internal

// Any thread. The first call of the process takes 2 ms to calibrate.
inline int64_t SteadyNs() {
#if defined(__x86_64__)
  const internal::ClockScale& scale = internal::clock_scale;
  const uint64_t multiplier = scale.multiplier.load(std::memory_order_acquire);
  if (multiplier != 0) [[likely]] {
    // Signed: another CPU's counter may lag the calibration's by some cycles.
    const auto ticks = static_cast<int64_t>(__rdtsc() - scale.base_counter);
    return scale.base_ns + static_cast<int64_t>((static_cast<__int128>(ticks) * multiplier) >> 32);
  }
#endif
  return internal::SteadyNsSlow();
}

// So far off that it never comes, in 73 years; sums of a few of them do not overflow.
inline constexpr int64_t kNeverNs = int64_t{1} << 61;

// The point in time `ns` after `now_ns`, for durations that users give: they may be endless, or
// negative.
inline int64_t AfterNs(int64_t now_ns, int64_t ns) {
  return now_ns + std::clamp(ns, -kNeverNs, kNeverNs);
}

}  // namespace verbena
