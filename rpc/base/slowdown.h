#pragma once
// kSlowdown: how many times longer than others this build may take: 1, and 10 with a sanitizer. A
// limit on how long a peer or a test may need for its next step is multiplied by it. What a user
// asks for (a deadline, a timeout) never is.

namespace verbena {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr int kSlowdown = 10;
#else
inline constexpr int kSlowdown = 1;
#endif

}  // namespace verbena
