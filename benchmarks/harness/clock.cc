#include "benchmarks/harness/clock.h"

namespace verbena::benchmarks {
namespace {

double Calibrate() {
  const uint64_t ns = NowNanoseconds();
  const uint64_t ticks = Ticks();
  uint64_t ns_end = ns;
  while (ns_end - ns < 20'000'000) ns_end = NowNanoseconds();
  return static_cast<double>(ns_end - ns) / static_cast<double>(Ticks() - ticks);
}

}  // namespace

double NanosecondsPerTick() {
  static const double ratio = Calibrate();
  return ratio;
}

}  // namespace verbena::benchmarks
