#pragma once
// A log-linear histogram of nanoseconds: exact below 128, then 128 buckets per power of two, so a
// percentile is right within 0.8 %. Recording costs a shift and an increment and never allocates.
#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::benchmarks {

class Histogram {
 public:
  static constexpr int kSubBits = 7;
  // Values above 2^40 ns (18 minutes) are counted as that.
  static constexpr int kBitsMax = 40;
  static constexpr size_t kBuckets = static_cast<size_t>(kBitsMax - kSubBits + 1) << kSubBits;

  void Record(uint64_t ns) {
    ++counts_[Index(ns)];
    ++count_;
  }
  uint64_t count() const { return count_; }
  // The value that a `fraction` (0 to 1) of all samples does not exceed; the middle of its bucket.
  // 0 when empty.
  double Percentile(double fraction) const;
  void Clear() { *this = Histogram(); }

  static size_t Index(uint64_t ns) {
    if (ns < (1u << kSubBits)) return ns;
    if (ns >> kBitsMax) ns = (uint64_t{1} << kBitsMax) - 1;
    const int shift = static_cast<int>(std::bit_width(ns)) - 1 - kSubBits;
    return (static_cast<size_t>(shift) << kSubBits) + (ns >> shift);
  }
  // First value of a bucket.
  static uint64_t LowerBound(size_t index) {
    if (index < (2u << kSubBits)) return index;
    const size_t shift = (index >> kSubBits) - 1;
    return (index - (shift << kSubBits)) << shift;
  }

 private:
  std::array<uint32_t, kBuckets> counts_{};
  uint64_t count_ = 0;
};

// Middle value (mean of the two middle ones when even). 0 for none.
double Median(std::vector<double> values);

}  // namespace verbena::benchmarks
