#pragma once
// Verbena's workloads, one function each, and the one server that answers them all.
#include <memory>
#include <string>

#include "benchmark.verbena.h"
#include "benchmark_tensor.verbena.h"
#include "benchmarks/harness/workload.h"
#include "verbena/verbena.h"

namespace verbena::benchmarks {

namespace pb = ::verbena_benchmarks;
using WorkloadPtr = absl::StatusOr<std::unique_ptr<Workload>>;

absl::StatusOr<std::unique_ptr<Service>> StartVerbenaService(const Params& params);

// A channel that has made its first call, over the row's transport: FAILED_PRECONDITION when it
// used another one.
absl::StatusOr<std::shared_ptr<Channel>> Connect(const Params& params);

WorkloadPtr StartEcho(const Params& params);           // one outstanding, blocking Get()
WorkloadPtr StartEchoCoroutine(const Params& params);  // one outstanding, awaited on a reactor
WorkloadPtr StartEchoMany(const Params& params);       // `outstanding` coroutines
WorkloadPtr StartPut(const Params& params);            // a large `bytes` field
WorkloadPtr StartTensor(const Params& params, bool user_memory);
WorkloadPtr StartEchoBesideBulk(const Params& params);
WorkloadPtr StartIdleConnections(const Params& params);
WorkloadPtr StartFairness(const Params& params);

// Awaits echoes one after another until the window is over, and `*busy` false where there is one,
// adding their latencies.
Task<absl::Status> EchoUntilOver(pb::Benchmark::Stub stub, const pb::EchoMessage& request,
                                 Window& window, const bool* busy = nullptr);
// Pulls tensors one after another into the same memory until the window is over, adding their
// bytes.
Task<absl::Status> FetchUntilOver(pb::TensorBenchmark::Stub stub, const pb::TensorRequest& request,
                                  Tensor into, Window& window);

}  // namespace verbena::benchmarks
