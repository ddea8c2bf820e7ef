#pragma once
// Counts operator new in this binary.
#include <cstdint>

namespace verbena::session {

uint64_t AllocationsSoFar();

}  // namespace verbena::session
