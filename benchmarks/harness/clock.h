#pragma once
// The benchmarks' clock: the processor's cycle counter, read in a few nanoseconds and calibrated
// once per process. Invariant: ticks are compared only inside one process.
#include <cstdint>
#include <ctime>

#if defined(__x86_64__)
#include <x86intrin.h>
#endif

namespace verbena::benchmarks {

inline uint64_t NowNanoseconds() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return static_cast<uint64_t>(t.tv_sec) * 1'000'000'000 + static_cast<uint64_t>(t.tv_nsec);
}

inline uint64_t Ticks() {
#if defined(__x86_64__)
  return __rdtsc();
#else
  return NowNanoseconds();
#endif
}

// Calibrated over 20 ms at the first call. Any thread.
double NanosecondsPerTick();

inline uint64_t TicksIn(double seconds) {
  return static_cast<uint64_t>(seconds * 1e9 / NanosecondsPerTick());
}

}  // namespace verbena::benchmarks
