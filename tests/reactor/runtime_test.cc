#include "verbena/runtime.h"

#include <string>

#include "rpc/reactor/reactors.h"
#include "tests/catch.h"

namespace verbena {
namespace {

using Catch::Matchers::Contains;

std::string Refusal(const RuntimeOptions& options) {
  const absl::Status status = InitRuntime(options);
  CHECK(status.code() == absl::StatusCode::kInvalidArgument);
  return std::string(status.message());
}

TEST_CASE("settings of the runtime that are out of range are refused with value and limit",
          "[runtime]") {
  CHECK_THAT(Refusal(RuntimeOptions().set_reactors(-1)),
             Contains("set_reactors(-1)") && Contains("0 to 1024"));
  CHECK_THAT(Refusal(RuntimeOptions().set_reactors(1025)), Contains("set_reactors(1025)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_spin(-absl::Milliseconds(3))),
             Contains("set_spin(-3ms)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_stall_report(absl::ZeroDuration())),
             Contains("set_stall_report(0)"));
  CHECK_THAT(Refusal(RuntimeOptions().set_memory_bytes_max(1'000)),
             Contains("1000 bytes") && Contains("33554432"));
}

TEST_CASE("settings come before the runtime runs", "[runtime]") {
  reactor::Reactors();
  const absl::Status status = InitRuntime(RuntimeOptions());
  CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
  CHECK_THAT(std::string(status.message()), Contains("already runs"));
}

}  // namespace
}  // namespace verbena
