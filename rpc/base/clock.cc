#include "rpc/base/clock.h"

#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <string_view>

#include "rpc/base/clock_source.h"
#include "rpc/base/unique_fd.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

namespace verbena {
namespace {

int64_t MonotonicNs() {
  timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return int64_t{t.tv_sec} * 1'000'000'000 + t.tv_nsec;
}

#if defined(__x86_64__)

constexpr const char* kClockSource =
    "/sys/devices/system/clocksource/clocksource0/current_clocksource";

// Invariant by the CPU's own word or the kernel's, which keeps time by it. Hypervisors leave the
// first out where the machine may move to another CPU; the kernel then goes by a clock of theirs,
// unless it was told that the counter will do.
bool UsableTsc() {
  unsigned a = 0, b = 0, c = 0, d = 0;
  const bool invariant = __get_cpuid(0x80000007u, &a, &b, &c, &d) != 0 && (d & (1u << 8)) != 0;
  return invariant || internal::NamesTsc(kClockSource);
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

// False: the counter is not usable.
bool Calibrate() {
  if (!UsableTsc()) return false;
  uint64_t first_tsc = 0, tsc = 0;
  int64_t first_ns = 0, ns = 0;
  ReadBoth(first_tsc, first_ns);
  while (MonotonicNs() - first_ns < 2'000'000) {
  }
  ReadBoth(tsc, ns);
  if (tsc <= first_tsc || ns <= first_ns) return false;
  const unsigned __int128 ratio =
      (static_cast<unsigned __int128>(ns - first_ns) << 32) / (tsc - first_tsc);
  internal::clock_scale.base_counter = first_tsc;
  internal::clock_scale.base_ns = first_ns;
  internal::clock_scale.multiplier.store(static_cast<uint64_t>(ratio), std::memory_order_release);
  return ratio != 0;
}

#endif

}  // namespace

namespace internal {

ClockScale clock_scale;

int64_t SteadyNsSlow() {
#if defined(__x86_64__)
  static const bool usable = Calibrate();
  if (usable) return SteadyNs();
#endif
  return MonotonicNs();
}

bool NamesTsc(const char* path) {
  const UniqueFd file(::open(path, O_RDONLY | O_CLOEXEC));
  char text[32];
  const ssize_t size = file.get() < 0 ? -1 : ::read(file.get(), text, sizeof text);
  return size > 0 && std::string_view(text, static_cast<size_t>(size)) == "tsc\n";
}

}  // namespace internal
}  // namespace verbena
