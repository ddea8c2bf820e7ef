#pragma once
// Shape: elements per dimension, at most eight dimensions. A value without allocations; also used
// for strides, which may be negative.
#include <algorithm>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "absl/types/span.h"

namespace verbena {

class Shape {
 public:
  static constexpr size_t kRankMax = 8;

  // Rank 0: one element.
  constexpr Shape() = default;
  // Takes integers, not a list: g++ 12 compiles no initializer_list anywhere inside a co_await
  // expression. Shape(2, 3) and {2, 3} both work there.
  template <std::integral... I>
  requires(sizeof...(I) > 0 && sizeof...(I) <= kRankMax) constexpr Shape(
      I... dims)  // NOLINT(google-explicit-constructor): {2, 3} is a shape
      : rank_(sizeof...(I)), dims_{static_cast<int64_t>(dims)...} {}
  // INVALID_ARGUMENT: more than kRankMax dimensions. Signs are not looked at: Tensor refuses
  // negative dimensions.
  static absl::StatusOr<Shape> From(absl::Span<const int64_t> dims) {
    if (dims.size() > kRankMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(dims.size(), " dimensions; at most ", kRankMax, " are possible"));
    }
    Shape s;
    s.rank_ = dims.size();
    std::copy(dims.begin(), dims.end(), s.dims_);
    return s;
  }

  constexpr size_t rank() const { return rank_; }
  constexpr bool empty() const { return rank_ == 0; }
  constexpr int64_t operator[](size_t i) const { return dims_[i]; }
  constexpr int64_t& operator[](size_t i) { return dims_[i]; }
  constexpr const int64_t* begin() const { return dims_; }
  constexpr const int64_t* end() const { return dims_ + rank_; }
  // The product; -1 when a dimension is negative or the product does not fit 63 bits.
  constexpr int64_t elements() const {
    int64_t product = 1;
    bool zero = false, overflow = false;
    for (const int64_t d : *this) {
      if (d < 0) return -1;
      zero = zero || d == 0;
      if (d != 0 && product > std::numeric_limits<int64_t>::max() / d) overflow = true;
      if (d != 0 && !overflow) product *= d;
    }
    return zero ? 0 : overflow ? -1 : product;
  }
  // "[2, 3]"
  std::string DebugString() const {
    std::string text = "[";
    for (size_t i = 0; i < rank_; ++i) absl::StrAppend(&text, i == 0 ? "" : ", ", dims_[i]);
    return text + "]";
  }

  friend constexpr bool operator==(const Shape& a, const Shape& b) {
    return a.rank_ == b.rank_ && std::equal(a.begin(), a.end(), b.begin());
  }

 private:
  size_t rank_ = 0;
  int64_t dims_[kRankMax] = {};
};

}  // namespace verbena
