#include "rpc/base/check.h"

#include <cstdio>
#include <cstdlib>

namespace verbena::internal {

void CheckFailed(const char* file, int line, const char* expression, absl::string_view state) {
  std::fprintf(stderr, "%s:%d: broken invariant: %s%s%.*s\n", file, line, expression,
               state.empty() ? "" : "; ", static_cast<int>(state.size()), state.data());
  std::abort();
}

}  // namespace verbena::internal
