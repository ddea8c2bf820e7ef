// What the host's copy engine makes of memcpy: both copy between the same two blocks of the pools.
// Arguments: bytes.
//   bench_copy --benchmark_repetitions=5 --benchmark_report_aggregates_only
// Compare medians of neighbouring lines only; other work on the machine moves both.
#include <benchmark/benchmark.h>

#include <cstdlib>
#include <cstring>
#include <memory>

#include "rpc/memory/device.h"
#include "rpc/memory/region.h"
#include "rpc/memory/streaming_copy.h"

namespace verbena::memory {
namespace {

constexpr size_t kChunkBytes = 1 << 20;  // as the session posts a transfer

struct Blocks {
  explicit Blocks(size_t size) : bytes(size) {
    absl::StatusOr<Block> a = AllocateBlock(bytes), b = AllocateBlock(bytes);
    if (!a.ok() || !b.ok()) std::abort();
    from = *std::move(a);
    to = *std::move(b);
    std::memset(from.data(), 1, bytes);
    std::memset(to.data(), 2, bytes);
  }
  size_t bytes;
  Block from, to;
};

void Count(benchmark::State& state) {
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

void Memcpy(benchmark::State& state) {
  Blocks blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    std::memcpy(blocks.to.data(), blocks.from.data(), blocks.bytes);
    benchmark::ClobberMemory();
  }
  Count(state);
}

// One transfer in chunks, eight queued at once, looked at every 4 KiB.
void Engine(benchmark::State& state) {
  Blocks blocks(static_cast<size_t>(state.range(0)));
  const std::unique_ptr<CopyEngine> engine = HostDevice().MakeCopyEngine();
  volatile bool other_work = false;
  for (auto _ : state) {
    size_t posted = 0;
    uint64_t left = (blocks.bytes + kChunkBytes - 1) / kChunkBytes, in_flight = 0;
    while (left > 0) {
      for (; in_flight < 8 && posted < blocks.bytes; ++in_flight) {
        const size_t bytes = std::min(kChunkBytes, blocks.bytes - posted);
        const CopyPiece piece{blocks.to.data() + posted, blocks.from.data() + posted, bytes};
        if (!engine->Copy(posted, absl::MakeConstSpan(&piece, 1), {})) std::abort();
        posted += bytes;
      }
      engine->Poll(
          kChunkBytes, [&] { return other_work; }, [&](uint64_t, bool) { --left, --in_flight; });
    }
  }
  Count(state);
}

void Streaming(benchmark::State& state) {
  Blocks blocks(static_cast<size_t>(state.range(0)));
  for (auto _ : state) {
    StreamingCopy(blocks.to.data(), blocks.from.data(), blocks.bytes);
    StreamingFence();
    benchmark::ClobberMemory();
  }
  Count(state);
}

void Sizes(benchmark::internal::Benchmark* b) {
  for (const int64_t kib : {64, 1024, 4096, 8192, 16384, 65536}) b->Arg(kib << 10);
}
BENCHMARK(Memcpy)->Apply(Sizes);
BENCHMARK(Engine)->Apply(Sizes);
BENCHMARK(Streaming)->Apply(Sizes);

}  // namespace
}  // namespace verbena::memory

BENCHMARK_MAIN();
