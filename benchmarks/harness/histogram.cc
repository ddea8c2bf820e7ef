#include "benchmarks/harness/histogram.h"

#include <algorithm>
#include <cmath>

namespace verbena::benchmarks {

double Histogram::Percentile(double fraction) const {
  if (count_ == 0) return 0;
  const auto rank = static_cast<uint64_t>(std::ceil(fraction * static_cast<double>(count_)));
  uint64_t seen = 0;
  for (size_t i = 0; i < kBuckets; ++i) {
    seen += counts_[i];
    if (seen < std::max<uint64_t>(rank, 1)) continue;
    return 0.5 * static_cast<double>(LowerBound(i) + LowerBound(i + 1) - 1);
  }
  return static_cast<double>(LowerBound(kBuckets - 1));
}

double Median(std::vector<double> values) {
  if (values.empty()) return 0;
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
}

}  // namespace verbena::benchmarks
