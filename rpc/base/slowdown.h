#pragma once
// kSlowdown: how many times longer than others this program may take: 10 with a sanitizer, times
// VERBENA_SLOWDOWN (1 to 1000; default 1), which says so of a machine: an emulated one, for
// instance. A limit on how long a peer or a test may need for its next step is multiplied by it.
// What a user asks for (a deadline, a timeout) never is.

namespace verbena {

// What VERBENA_SLOWDOWN says: 1 if nothing, or no number of its range.
int MachineSlowdown();

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline const int kSlowdown = 10 * MachineSlowdown();
#else
inline const int kSlowdown = MachineSlowdown();
#endif

}  // namespace verbena
