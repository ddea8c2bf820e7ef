#include "rpc/fabric/stages.h"

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace verbena::fabric {
namespace {

constexpr uint32_t kUnit = 4096;

TEST_CASE("stages are as large as what they are taken for, and do not overlap", "[stages]") {
  Stages stages(kUnit, 24);
  const uint32_t large = stages.Take(8 * kUnit), small = stages.Take(1);
  const uint32_t odd = stages.Take(7 * kUnit + 1), last = stages.Take(7 * kUnit);
  REQUIRE((large != Stages::kNone && small != Stages::kNone));
  REQUIRE((odd != Stages::kNone && last != Stages::kNone));
  CHECK_FALSE(stages.unused());
  // All 24 units are taken.
  CHECK(stages.Take(1) == Stages::kNone);
  const std::vector<std::pair<uint32_t, size_t>> all = {
      {large, 8 * kUnit}, {small, kUnit}, {odd, 8 * kUnit}, {last, 7 * kUnit}};
  for (const auto& [stage, bytes] : all) std::memset(stages.At(stage), 'a' + stage, bytes);
  for (const auto& [stage, bytes] : all) {
    const std::vector<std::byte> seen(stages.At(stage), stages.At(stage) + bytes);
    CHECK(seen == std::vector<std::byte>(bytes, static_cast<std::byte>('a' + stage)));
  }
  // What is between others is found again, by what fits.
  stages.Give(small);
  CHECK(stages.Take(2 * kUnit) == Stages::kNone);
  CHECK(stages.Take(kUnit) == small);
  // What adjoins makes room together.
  stages.Give(small);
  stages.Give(large);
  CHECK(stages.Take(9 * kUnit) == large);
  for (const uint32_t stage : {large, odd, last}) stages.Give(stage);
  CHECK(stages.unused());
}

TEST_CASE("the stage that was given back last is used next", "[stages]") {
  Stages stages(kUnit, 24);
  const uint32_t first = stages.Take(8 * kUnit), second = stages.Take(8 * kUnit);
  stages.Give(first);
  CHECK(stages.Take(8 * kUnit) == first);
  stages.Give(first);
  stages.Give(second);
}

TEST_CASE("there are eight stages at most", "[stages]") {
  Stages stages(kUnit, GENERATE(8u, 24u, 32u));
  std::vector<uint32_t> taken;
  for (uint32_t i = 0; i < Stages::kCount; ++i) taken.push_back(stages.Take(i % 2 * kUnit));
  CHECK(std::find(taken.begin(), taken.end(), Stages::kNone) == taken.end());
  CHECK(stages.Take(1) == Stages::kNone);
  for (const uint32_t stage : taken) stages.Give(stage);
  CHECK(stages.unused());
}

TEST_CASE("one stage may take all units", "[stages]") {
  Stages stages(kUnit, Stages::kUnitsMax);
  const uint32_t all = stages.Take(Stages::kUnitsMax * size_t{kUnit});
  REQUIRE(all == 0);
  CHECK(stages.Take(1) == Stages::kNone);
  stages.Give(all);
  CHECK(stages.unused());
}

}  // namespace
}  // namespace verbena::fabric
