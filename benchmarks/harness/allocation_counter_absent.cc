#include "benchmarks/harness/allocation_counter.h"

// Weak: the real ones win where the counter is linked in.
namespace verbena::benchmarks {

[[gnu::weak]] bool AllocationCounterPresent() { return false; }
[[gnu::weak]] void CountAllocations(bool) {}
[[gnu::weak]] void LeaveOutAllocationsHere(bool) {}
[[gnu::weak]] uint64_t AllocationCount() { return 0; }
[[gnu::weak]] void PrintAllocationSites() {}

}  // namespace verbena::benchmarks
