#include "rpc/memory/buddy.h"

#include <random>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace verbena::memory {
namespace {

TEST_CASE("all units can be had, singly and as one", "[buddy]") {
  Buddy buddy(64);
  CHECK(buddy.Allocate(64) == 0);
  CHECK(buddy.Allocate(1) == Buddy::kNone);
  buddy.Free(0, 64);
  std::vector<bool> seen(64);
  for (int i = 0; i < 64; ++i) {
    const uint32_t unit = buddy.Allocate(1);
    REQUIRE(unit < 64);
    CHECK_FALSE(seen[unit]);
    seen[unit] = true;
  }
  CHECK(buddy.Allocate(1) == Buddy::kNone);
  CHECK(buddy.free_units() == 0);
  for (uint32_t i = 0; i < 64; ++i) buddy.Free(i, 1);
  // Everything merged again.
  CHECK(buddy.Allocate(64) == 0);
}

TEST_CASE("a range that is no power of two leaves its tail free", "[buddy]") {
  Buddy buddy(64);
  CHECK(buddy.Allocate(33) == 0);
  CHECK(buddy.free_units() == 31);
  CHECK(buddy.Allocate(16) == 48);
  // The other 15 are chunks of 1, 2, 4 and 8: no place for 15 in a row, aligned to 16.
  CHECK(buddy.Allocate(15) == Buddy::kNone);
  for (const uint32_t count : {8, 4, 2, 1}) CHECK(buddy.Allocate(count) != Buddy::kNone);
  CHECK(buddy.free_units() == 0);
}

TEST_CASE("counts beyond the space are refused", "[buddy][hostile]") {
  Buddy buddy(64);
  CHECK(buddy.Allocate(65) == Buddy::kNone);
  CHECK(buddy.Allocate(~0u) == Buddy::kNone);
  CHECK(buddy.Allocate(1u << 31) == Buddy::kNone);
  Buddy one(1);
  CHECK(one.Allocate(1) == 0);
  CHECK(one.Allocate(1) == Buddy::kNone);
}

TEST_CASE("random ranges never overlap and all come back", "[buddy]") {
  std::mt19937 random(99);
  constexpr uint32_t kUnits = 1024;
  Buddy buddy(kUnits);
  std::vector<int> owner(kUnits, -1);
  std::vector<std::pair<uint32_t, uint32_t>> ranges;
  for (int round = 0; round < 20000; ++round) {
    if (random() % 2 == 0 || ranges.empty()) {
      const uint32_t count = 1 + static_cast<uint32_t>(random() % (random() % 8 == 0 ? 300 : 9));
      const uint32_t first = buddy.Allocate(count);
      if (first == Buddy::kNone) continue;
      for (uint32_t u = first; u < first + count; ++u) {
        REQUIRE(u < kUnits);
        REQUIRE(owner[u] == -1);
        owner[u] = round;
      }
      ranges.emplace_back(first, count);
    } else {
      std::swap(ranges[random() % ranges.size()], ranges.back());
      const auto [first, count] = ranges.back();
      ranges.pop_back();
      buddy.Free(first, count);
      for (uint32_t u = first; u < first + count; ++u) owner[u] = -1;
    }
    uint32_t used = 0;
    for (const auto& [first, count] : ranges) used += count;
    REQUIRE(buddy.free_units() == kUnits - used);
  }
  for (const auto& [first, count] : ranges) buddy.Free(first, count);
  CHECK(buddy.Allocate(kUnits) == 0);
}

}  // namespace
}  // namespace verbena::memory
