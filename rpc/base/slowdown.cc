#include "rpc/base/slowdown.h"

#include <cstdlib>

#include "absl/strings/numbers.h"

namespace verbena {

int MachineSlowdown() {
  const char* const text = std::getenv("VERBENA_SLOWDOWN");
  int times = 0;
  return text != nullptr && absl::SimpleAtoi(text, &times) && times >= 1 && times <= 1000 ? times
                                                                                          : 1;
}

}  // namespace verbena
