#include "rpc/base/log.h"

#include <string>
#include <vector>

#include "tests/catch.h"

using verbena::LogLevel;

TEST_CASE("the sink gets lines at or above the level and no others", "[log]") {
  std::vector<std::string> lines;
  verbena::SetLogSink([&lines](LogLevel, absl::string_view line) { lines.emplace_back(line); });
  verbena::SetLogLevel(LogLevel::kInfo);
  int evaluated = 0;
  auto value = [&evaluated] { return ++evaluated; };
  VERBENA_LOG(kInfo, "peer ", 7, " closed");
  VERBENA_LOG(kDebug, "never built: ", value());
  CHECK(evaluated == 0);
  verbena::SetLogLevel(LogLevel::kError);
  VERBENA_LOG(kWarning, "hidden");
  verbena::SetLogLevel(LogLevel::kWarning);
  verbena::SetLogSink({});
  REQUIRE(lines.size() == 1);
  CHECK(lines[0] == "peer 7 closed");
}
