#include "benchmarks/harness/line.h"

#include <sched.h>

#include <atomic>
#include <thread>
#include <vector>

#include "benchmarks/harness/clock.h"
#include "benchmarks/harness/histogram.h"

namespace verbena::benchmarks {
namespace {

constexpr uint32_t kTripsPerBatch = 500;
constexpr uint32_t kBatches = 9;

struct alignas(128) Line {
  std::atomic<uint32_t> turn{0};  // odd: the partner's turn
};

void Answer(Line& line, int core) {
  PinToCore(core);
  for (uint32_t i = 0; i < kBatches * kTripsPerBatch; ++i) {
    while (line.turn.load(std::memory_order_acquire) != 2 * i + 1) {
    }
    line.turn.store(2 * i + 2, std::memory_order_release);
  }
}

}  // namespace

bool PinToCore(int core) {
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(core, &set);
  return sched_setaffinity(0, sizeof(set), &set) == 0;
}

double MeasureLineNs(int core_a, int core_b) {
  if (core_a == core_b) return 0;
  PinToCore(core_a);
  Line line;
  std::thread partner([&line, core_b] { Answer(line, core_b); });
  std::vector<double> batches;
  uint32_t turn = 0;
  for (uint32_t b = 0; b < kBatches; ++b) {
    const uint64_t start = Ticks();
    for (uint32_t i = 0; i < kTripsPerBatch; ++i, turn += 2) {
      line.turn.store(turn + 1, std::memory_order_release);
      while (line.turn.load(std::memory_order_acquire) != turn + 2) {
      }
    }
    batches.push_back(static_cast<double>(Ticks() - start) * NanosecondsPerTick() / kTripsPerBatch);
  }
  partner.join();
  return Median(batches);
}

}  // namespace verbena::benchmarks
