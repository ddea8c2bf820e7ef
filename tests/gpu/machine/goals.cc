#include "tests/gpu/machine/goals.h"

#include <cstdio>

namespace verbena::gpu_test {

void Goals::Add(const std::string& what, double bound, double value, int sign) {
  char row[200];
  std::snprintf(row, sizeof row, "%-64s %s %6.2f  %7.2f  %s", what.c_str(),
                sign > 0 ? "at least" : "at most ", bound, value,
                sign * value >= sign * bound ? "met" : "MISSED");
  rows_.push_back(row);
}

void Goals::Print() const {
  std::printf("\n%-64s %15s  %7s\n", "what", "goal", "here");
  for (const std::string& row : rows_) std::printf("%s\n", row.c_str());
}

}  // namespace verbena::gpu_test
