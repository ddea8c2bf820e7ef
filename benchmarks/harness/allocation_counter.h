#pragma once
// Counts heap allocations (every form of operator new) of this process while switched on, by who
// made them, so that "no allocation per call" is a number. protobuf's own (its strings included)
// are left out: an allocation is protobuf's when the first frame above it that is not the standard
// library's is in namespace google::protobuf or in a message of package `verbena_benchmarks`.
// Linked in by the library verbena_benchmark_allocations; without it the count is always 0. Direct
// malloc calls of C libraries are not seen.
#include <cstdint>

namespace verbena::benchmarks {

// Whether the counter is linked in.
bool AllocationCounterPresent();
// Off at start. Any thread.
void CountAllocations(bool on);
// Whether this thread's are left out: the harness's own, between the calls that are measured.
void LeaveOutAllocationsHere(bool out);
// Allocations counted so far, protobuf's excluded. Takes milliseconds the first time a new caller
// was seen. Any thread.
uint64_t AllocationCount();
// To stderr: each caller with its count, its first frames and whether it counts.
void PrintAllocationSites();

}  // namespace verbena::benchmarks
