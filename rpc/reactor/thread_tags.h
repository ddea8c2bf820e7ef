#pragma once
// What an event of the reactor thread's epoll is about.
#include <cstdint>

namespace verbena::reactor {

inline constexpr uint64_t kWakeTag = 1;
inline constexpr uint64_t kTimerTag = 2;
inline constexpr uint64_t kPollerTag = 3;

}  // namespace verbena::reactor
