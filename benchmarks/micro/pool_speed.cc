// What a block of the pools costs beside malloc, and what faulting one in costs.
#include <benchmark/benchmark.h>

#include <cstdlib>

#include "rpc/memory/pool.h"
#include "rpc/memory/slab.h"

namespace verbena::memory {
namespace {

void AllocateAndFree(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    Block block = TryAllocateBlock(bytes);
    if (!block) block = *AllocateBlock(bytes);
    benchmark::DoNotOptimize(block.data());
  }
}

void Malloc(benchmark::State& state) {
  const auto bytes = static_cast<size_t>(state.range(0));
  for (auto _ : state) {
    void* const block = std::malloc(bytes);
    benchmark::DoNotOptimize(block);
    std::free(block);
  }
}

void MakeSlab(benchmark::State& state) {
  for (auto _ : state) {
    absl::StatusOr<std::shared_ptr<Slab>> slab =
        Slab::Create(static_cast<uint64_t>(state.range(0)), -1);
    if (!slab.ok()) state.SkipWithError("no memory");
    state.SetLabel((*slab)->huge_pages() ? "huge pages" : "small pages");
  }
  state.SetBytesProcessed(state.iterations() * state.range(0));
}

BENCHMARK(AllocateAndFree)->Arg(64)->Arg(2048)->Arg(8192)->Arg(1 << 20)->Arg(64 << 20);
BENCHMARK(Malloc)->Arg(64)->Arg(2048)->Arg(8192)->Arg(1 << 20)->Arg(64 << 20);
BENCHMARK(MakeSlab)->Arg(16 << 20)->Arg(256 << 20)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace verbena::memory

BENCHMARK_MAIN();
