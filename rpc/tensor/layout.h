#pragma once
// Layout: where the elements of a tensor lie within a payload, as numbers only. Checked once when
// it is made, by whoever has them from a user, a peer or another library; after that no arithmetic
// on it can overflow. What Tensor is made of, and what a receiver computes the READs of a remote
// slice with.
#include <cstddef>
#include <cstdint>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/dtype.h"
#include "verbena/shape.h"
#include "verbena/tensor.h"

namespace verbena::internal {

class Layout {
 public:
  Layout() = default;
  // Elements of `dtype` at `byte_offset` + strides * index, all within [0, payload_bytes).
  // `strides` in elements; empty means row-major. Errors as Tensor::Wrap.
  static absl::StatusOr<Layout> Make(DType dtype, const Shape& shape, const Shape& strides,
                                     uint64_t byte_offset, uint64_t payload_bytes);

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  const Shape& strides() const { return strides_; }  // empty: contiguous
  uint64_t byte_offset() const { return byte_offset_; }
  bool contiguous() const { return strides_.empty(); }
  // Packed row-major; what a gathered copy takes.
  uint64_t bytes() const { return bytes_; }

  absl::StatusOr<Layout> Slice(const TensorSlice& slice) const;

  // Calls `run(offset, bytes)` for maximal byte ranges of the payload, in row-major order: copied
  // one after another they are the packed tensor. Stops when `run` returns false. False when
  // stopped. INVALID: a strided type below a byte, see gatherable().
  bool ForEachRun(absl::FunctionRef<bool(uint64_t offset, uint64_t bytes)> run) const;
  // Whether the elements can be moved as bytes one by one: contiguous, or whole bytes each.
  bool gatherable() const { return contiguous() || dtype_.bits() % 8 == 0; }

 private:
  DType dtype_;
  Shape shape_;
  Shape strides_;
  uint64_t byte_offset_ = 0;
  uint64_t bytes_ = 0;
};

// Bytes of a packed tensor. INVALID_ARGUMENT names a type without a size, a negative dimension, or
// a product that does not fit 63 bits.
absl::StatusOr<uint64_t> PackedBytes(DType dtype, const Shape& shape);
Shape RowMajorStrides(const Shape& shape);

// The bytes that the elements take, relative to element [0, 0, ...]: [begin, end) with begin <= 0.
// Errors as PackedBytes, and OUT_OF_RANGE when they reach past 2^63 bits.
struct Reach {
  int64_t begin = 0;
  int64_t end = 0;
};
absl::StatusOr<Reach> ReachOf(DType dtype, const Shape& shape, const Shape& strides);

}  // namespace verbena::internal
