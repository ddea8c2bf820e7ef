#include "rpc/base/slowdown.h"

#include <cstdlib>
#include <string>
#include <utility>

#include "tests/catch.h"

namespace verbena {
namespace {

TEST_CASE("a slow machine is what VERBENA_SLOWDOWN calls one", "[base][slowdown]") {
  const char* const before = std::getenv("VERBENA_SLOWDOWN");
  const std::string kept = before != nullptr ? before : "";
  for (const auto& [text, times] : {std::pair{"1", 1}, {"10", 10}, {"1000", 1000}}) {
    setenv("VERBENA_SLOWDOWN", text, 1);
    CHECK(MachineSlowdown() == times);
  }
  for (const char* text : {"", "0", "-3", "1001", "1.5", "10x"}) {
    setenv("VERBENA_SLOWDOWN", text, 1);
    CHECK(MachineSlowdown() == 1);
  }
  unsetenv("VERBENA_SLOWDOWN");
  CHECK(MachineSlowdown() == 1);
  if (before != nullptr) setenv("VERBENA_SLOWDOWN", kept.c_str(), 1);
}

}  // namespace
}  // namespace verbena
