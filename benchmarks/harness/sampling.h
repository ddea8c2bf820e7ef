#pragma once
// Windows measured so far and what they say: which are kept, and the medians of each class.
#include <string>
#include <vector>

#include "benchmarks/harness/line.h"
#include "benchmarks/harness/row.h"

namespace verbena::benchmarks {

struct Sample {
  LineClass line_class = LineClass::kMixed;
  double line_ns = 0;   // mean of before and after
  double switches = 0;  // involuntary, both processes
  double foreign = 0;   // share of the two cores' time that neither process used nor left idle
  double value = 0;
  double p99 = 0;
};

// A window in which others took more than this of the cores was disturbed, and is dropped. The
// kernel counts in steps of 10 ms, so in a window of 0.25 s on two cores less than 0.04 cannot be
// told from nothing; compilers beside it make 0.3 to 0.8.
inline constexpr double kForeignMax = 0.1;

// A window with more involuntary switches than this was disturbed, and is dropped. A quiet spinning
// window of 0.3 s has 2 to 20; workloads that switch by themselves (threads on one core) are judged
// by twice their own median instead.
inline constexpr double kSwitchesMax = 60;

// Keeps what was neither mixed nor disturbed.
std::vector<Sample> Undisturbed(const std::vector<Sample>& all, double foreign_max = kForeignMax);

// The same for a row's windows. Counts are what they are however busy the machine is: all are kept.
std::vector<Sample> Kept(const Row& row, const std::vector<Sample>& all, double foreign_max);

struct Summary {
  size_t windows = 0;
  double value = 0;  // medians
  double p99 = 0;
  double line_ns = 0;
  double switches = 0;
};
Summary Summarize(const std::vector<Sample>& kept, LineClass line_class);

}  // namespace verbena::benchmarks
