#include "rpc/tensor/layout.h"

#include <algorithm>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"

namespace verbena::internal {
namespace {

constexpr int64_t kBitsMax = std::numeric_limits<int64_t>::max() - 7;

// Strides that mean row-major: those of dimensions of one element do not matter, and nothing
// matters without elements.
bool IsRowMajor(const Shape& shape, const Shape& strides) {
  if (shape.elements() == 0) return true;
  int64_t expected = 1;
  for (size_t i = shape.rank(); i-- > 0;) {
    if (shape[i] != 1 && strides[i] != expected) return false;
    expected *= shape[i];
  }
  return true;
}

absl::Status CheckRange(DType dtype, const Shape& shape, const Shape& strides, uint64_t byte_offset,
                        uint64_t payload_bytes) {
  const absl::StatusOr<Reach> reach = ReachOf(dtype, shape, strides);
  if (!reach.ok()) return reach.status();
  const auto before = static_cast<uint64_t>(-reach->begin);
  const auto after = static_cast<uint64_t>(reach->end);
  if (byte_offset >= before && byte_offset <= payload_bytes &&
      after <= payload_bytes - byte_offset) {
    return absl::OkStatus();
  }
  return absl::OutOfRangeError(absl::StrCat(dtype.DebugString(), shape.DebugString(),
                                            " with strides ", strides.DebugString(), " needs ",
                                            before, " bytes before and ", after, " from byte ",
                                            byte_offset, " of a buffer of ", payload_bytes));
}

}  // namespace

absl::StatusOr<uint64_t> PackedBytes(DType dtype, const Shape& shape) {
  if (dtype.bits() == 0 || dtype.code() == DTypeCode::kOpaqueHandle) {
    return absl::InvalidArgumentError(
        absl::StrCat(dtype.DebugString(), " cannot be the type of a tensor"));
  }
  const int64_t elements = shape.elements();
  int64_t bits;
  if (elements < 0 || __builtin_mul_overflow(elements, int64_t{dtype.bits()}, &bits) ||
      bits > kBitsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shape ", shape.DebugString(), " of ", dtype.DebugString(),
                     ": a dimension is negative, or 2^63 bits are too few"));
  }
  return static_cast<uint64_t>(bits + 7) / 8;
}

absl::StatusOr<Reach> ReachOf(DType dtype, const Shape& shape, const Shape& strides) {
  const absl::StatusOr<uint64_t> packed = PackedBytes(dtype, shape);
  if (!packed.ok()) return packed.status();
  if (strides.empty() || *packed == 0) return Reach{0, static_cast<int64_t>(*packed)};
  // In bits, each sign on its own side.
  int64_t low = 0, high = dtype.bits();
  bool fits = true;
  for (size_t i = 0; i < shape.rank(); ++i) {
    int64_t far = 0;
    fits = fits && !__builtin_mul_overflow(shape[i] - 1, strides[i], &far) &&
           !__builtin_mul_overflow(far, int64_t{dtype.bits()}, &far);
    int64_t& side = far < 0 ? low : high;
    fits = fits && !__builtin_add_overflow(side, far, &side);
  }
  if (!fits || low < -kBitsMax || high > kBitsMax) {
    return absl::OutOfRangeError(absl::StrCat("shape ", shape.DebugString(), " with strides ",
                                              strides.DebugString(), " reaches past 2^63 bits"));
  }
  return Reach{-((-low + 7) / 8), (high + 7) / 8};
}

Shape RowMajorStrides(const Shape& shape) {
  Shape strides = shape;
  int64_t stride = 1;
  for (size_t i = shape.rank(); i-- > 0;) {
    strides[i] = stride;
    // Only a shape without elements can overflow here; its strides mean nothing.
    if (__builtin_mul_overflow(stride, std::max<int64_t>(shape[i], 1), &stride)) stride = 0;
  }
  return strides;
}

absl::StatusOr<Layout> Layout::Make(DType dtype, const Shape& shape, const Shape& strides,
                                    uint64_t byte_offset, uint64_t payload_bytes) {
  absl::StatusOr<uint64_t> packed = PackedBytes(dtype, shape);
  if (!packed.ok()) return packed.status();
  if (!strides.empty() && strides.rank() != shape.rank()) {
    return absl::InvalidArgumentError(
        absl::StrCat(strides.rank(), " strides for ", shape.rank(), " dimensions"));
  }
  Layout layout;
  layout.dtype_ = dtype;
  layout.shape_ = shape;
  layout.byte_offset_ = byte_offset;
  layout.bytes_ = *packed;
  if (strides.empty() || IsRowMajor(shape, strides)) {
    if (byte_offset > payload_bytes || *packed > payload_bytes - byte_offset) {
      return absl::OutOfRangeError(absl::StrCat(dtype.DebugString(), shape.DebugString(), " takes ",
                                                *packed, " bytes from byte ", byte_offset,
                                                ", past the buffer's ", payload_bytes));
    }
    return layout;
  }
  layout.strides_ = strides;
  if (absl::Status s = CheckRange(dtype, shape, strides, byte_offset, payload_bytes); !s.ok()) {
    return s;
  }
  return layout;
}

absl::StatusOr<Layout> Layout::Slice(const TensorSlice& slice) const {
  if (slice.count() > shape_.rank()) {
    return absl::OutOfRangeError(absl::StrCat("the slice names ", slice.count(), " dimensions of ",
                                              shape_.rank(), " (at most ", Shape::kRankMax,
                                              " are possible)"));
  }
  const Shape strides = contiguous() ? RowMajorStrides(shape_) : strides_;
  Layout part = *this;
  for (size_t i = 0; i < slice.count(); ++i) {
    const int64_t begin = slice.begin(i);
    const int64_t end = slice.end(i) == TensorSlice::kEnd ? shape_[i] : slice.end(i);
    if (begin < 0 || begin > end || end > shape_[i]) {
      return absl::OutOfRangeError(absl::StrCat("[", begin, ", ", end, ") of dimension ", i,
                                                ", which has ", shape_[i], " elements"));
    }
    part.shape_[i] = end - begin;
  }
  // A part without elements stays where the whole is: its own first element may lie past the end.
  int64_t first = 0;  // in elements
  for (size_t i = 0; i < slice.count() && part.shape_.elements() != 0; ++i) {
    first += slice.begin(i) * strides[i];
  }
  const int64_t first_bit = first * dtype_.bits();
  if (first_bit % 8 != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the slice of ", dtype_.DebugString(), " begins at bit ", first_bit, ", not on a byte"));
  }
  part.byte_offset_ += static_cast<uint64_t>(first_bit / 8);
  absl::StatusOr<uint64_t> packed = PackedBytes(dtype_, part.shape_);
  VERBENA_CHECK(packed.ok(), "part of ", shape_.DebugString());
  part.bytes_ = *packed;
  part.strides_ = IsRowMajor(part.shape_, strides) ? Shape() : strides;
  return part;
}

bool Layout::ForEachRun(absl::FunctionRef<bool(uint64_t, uint64_t)> run) const {
  if (bytes_ == 0) return true;
  if (contiguous()) return run(byte_offset_, bytes_);
  VERBENA_CHECK(gatherable(), dtype_.DebugString(), " with strides");
  // The innermost dimensions that lie packed make one run; the others are counted through.
  size_t outer = shape_.rank();
  int64_t packed = 1;
  while (outer > 0 && (shape_[outer - 1] == 1 || strides_[outer - 1] == packed)) {
    packed *= shape_[--outer];
  }
  const uint64_t element = static_cast<uint64_t>(dtype_.bits() / 8);
  const uint64_t run_bytes = static_cast<uint64_t>(packed) * element;
  Shape index = shape_;
  for (size_t i = 0; i < outer; ++i) index[i] = 0;
  uint64_t offset = byte_offset_;  // strides may be negative: wraps, and comes back
  while (true) {
    if (!run(offset, run_bytes)) return false;
    size_t i = outer;
    while (i-- > 0) {
      const uint64_t step = static_cast<uint64_t>(strides_[i]) * element;
      offset += step;
      if (++index[i] < shape_[i]) break;
      offset -= step * static_cast<uint64_t>(shape_[i]);
      index[i] = 0;
    }
    if (i == static_cast<size_t>(-1)) return true;
  }
}

}  // namespace verbena::internal
