#pragma once
// VERBENA_CHECK(condition, state...): a broken invariant of our own ends the process with the
// expression and the state. Never for what a peer or a user controls: that is validated and
// answered with a Status. VERBENA_DCHECK: debug builds.
#include "absl/strings/str_cat.h"

namespace verbena::internal {
[[noreturn]] void CheckFailed(const char* file, int line, const char* expression,
                              absl::string_view state);
}  // namespace verbena::internal

#define VERBENA_CHECK(condition, ...)                                                  \
  do {                                                                                 \
    if (__builtin_expect(!(condition), 0)) {                                           \
      ::verbena::internal::CheckFailed(__FILE__, __LINE__, #condition,                 \
                                       ::absl::StrCat("" __VA_OPT__(, ) __VA_ARGS__)); \
    }                                                                                  \
  } while (false)

#ifdef NDEBUG
#define VERBENA_DCHECK(condition, ...) \
  do {                                 \
    if (false) (void)(condition);      \
  } while (false)
#else
#define VERBENA_DCHECK(...) VERBENA_CHECK(__VA_ARGS__)
#endif
