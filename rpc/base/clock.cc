#include "rpc/base/clock.h"

#include <time.h>

#if defined(__x86_64__)
#include <cpuid.h>
#include <x86intrin.h>
#endif

namespace verbena {
namespace {

int64_t MonotonicNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

#if defined(__x86_64__)

// ns = base_ns + (tsc - base_tsc) * multiplier / 2^32; multiplier 0 = the counter is not usable.
struct Scale {
  uint64_t base_tsc = 0;
  int64_t base_ns = 0;
  uint64_t multiplier = 0;
};

bool InvariantTsc() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  return __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
}

// Both clocks as of one moment: the pair of reads that lay closest together, of several.
void ReadBoth(uint64_t& tsc, int64_t& ns) {
  uint64_t best = ~uint64_t{0};
  for (int i = 0; i < 16; ++i) {
    const uint64_t before = __rdtsc();
    const int64_t now = MonotonicNs();
    const uint64_t after = __rdtsc();
    if (after - before < best) {
      best = after - before;
      tsc = before + (after - before) / 2;
      ns = now;
    }
  }
}

Scale Calibrate() {
  Scale scale;
  if (!InvariantTsc()) return scale;
  ReadBoth(scale.base_tsc, scale.base_ns);
  while (MonotonicNs() - scale.base_ns < 2'000'000) {
  }
  uint64_t tsc = 0;
  int64_t ns = 0;
  ReadBoth(tsc, ns);
  if (tsc <= scale.base_tsc || ns <= scale.base_ns) return scale;
  const unsigned __int128 ratio =
      (static_cast<unsigned __int128>(ns - scale.base_ns) << 32) / (tsc - scale.base_tsc);
  scale.multiplier = static_cast<uint64_t>(ratio);
  return scale;
}

#endif

}  // namespace

int64_t SteadyNs() {
#if defined(__x86_64__)
  static const Scale scale = Calibrate();
  if (__builtin_expect(scale.multiplier != 0, 1)) {
    // Signed: another CPU's counter may lag the calibration's by some cycles.
    const auto ticks = static_cast<int64_t>(__rdtsc() - scale.base_tsc);
    return scale.base_ns +
           static_cast<int64_t>((static_cast<__int128>(ticks) * scale.multiplier) >> 32);
  }
#endif
  return MonotonicNs();
}

}  // namespace verbena
