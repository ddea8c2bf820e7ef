#pragma once
// What this room needs to know of the machine.
#include <cstdint>

namespace verbena::memory {

// What this process may use: the machine's memory, or its control group's limit when that is lower.
uint64_t MachineMemoryBytes();
// At least 1. Nodes are numbered from 0; one without memory counts.
int NumaNodes();
// Of the CPU that this thread runs on now. No system call.
int NumaNodeHere();
// The last-level cache of one socket as the CPU reports it; 0 = unknown.
uint64_t LastLevelCacheBytes();

}  // namespace verbena::memory
