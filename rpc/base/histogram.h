#pragma once
// Histogram: counts of non-negative values (nanoseconds, bytes) in log-linear buckets: 16 per power
// of two, so a percentile is at most 1/16 above the truth. Fixed size, no allocation. One thread at
// a time; add several with Merge.
#include <array>
#include <bit>
#include <cstdint>

namespace verbena {

class Histogram {
 public:
  void Record(int64_t value) {
    const uint64_t v = value < 0 ? 0 : static_cast<uint64_t>(value);
    ++counts_[BucketOf(v)];
    ++count_;
    sum_ += v;
    if (v > max_) max_ = v;
    if (v < min_) min_ = v;
  }

  void Merge(const Histogram& other) {
    for (uint32_t i = 0; i < kBuckets; ++i) counts_[i] += other.counts_[i];
    count_ += other.count_;
    sum_ += other.sum_;
    if (other.max_ > max_) max_ = other.max_;
    if (other.min_ < min_) min_ = other.min_;
  }

  void Reset() { *this = Histogram(); }

  uint64_t count() const { return count_; }
  uint64_t sum() const { return sum_; }
  uint64_t max() const { return max_; }
  uint64_t min() const { return count_ == 0 ? 0 : min_; }

  // The smallest recorded bound that at least `fraction` (0 to 1) of the values do not exceed; 0
  // when empty.
  uint64_t Percentile(double fraction) const {
    if (count_ == 0) return 0;
    if (fraction < 0) fraction = 0;
    if (fraction > 1) fraction = 1;
    auto rank = static_cast<uint64_t>(fraction * static_cast<double>(count_) + 0.5);
    if (rank == 0) rank = 1;
    uint64_t seen = 0;
    for (uint32_t i = 0; i < kBuckets; ++i) {
      seen += counts_[i];
      if (seen >= rank) return UpperBound(i) < max_ ? UpperBound(i) : max_;
    }
    return max_;
  }

  static constexpr uint32_t kSubBits = 4;
  static constexpr uint32_t kBuckets = (64 - kSubBits + 1) << kSubBits;

  static constexpr uint32_t BucketOf(uint64_t v) {
    if (v < (1u << kSubBits)) return static_cast<uint32_t>(v);
    const uint32_t shift = static_cast<uint32_t>(std::bit_width(v)) - 1 - kSubBits;
    return ((shift + 1) << kSubBits) + static_cast<uint32_t>((v >> shift) & ((1u << kSubBits) - 1));
  }
  // The largest value that falls into bucket `index`.
  static constexpr uint64_t UpperBound(uint32_t index) {
    if (index < (1u << kSubBits)) return index;
    const uint32_t shift = (index >> kSubBits) - 1;
    const uint64_t base = (uint64_t{1} << kSubBits) | (index & ((1u << kSubBits) - 1));
    return ((base + 1) << shift) - 1;
  }

 private:
  std::array<uint64_t, kBuckets> counts_{};
  uint64_t count_ = 0;
  uint64_t sum_ = 0;
  uint64_t max_ = 0;
  uint64_t min_ = ~uint64_t{0};
};

}  // namespace verbena
