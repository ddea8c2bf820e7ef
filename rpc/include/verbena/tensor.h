#pragma once
// Tensor: typed, shaped memory as a value. Copying shares the memory, the last copy releases it.
//
//   VERBENA_ASSIGN_OR_RETURN(Tensor t, verbena::Tensor::Empty(verbena::kFloat32, {2, 3}));
//   VERBENA_ASSIGN_OR_RETURN(absl::Span<float> values, t.MutableValues<float>());
//   // Shares t's memory:
//   VERBENA_ASSIGN_OR_RETURN(Tensor row, t.Slice(verbena::TensorSlice(1, 2)));
#include <cstddef>
#include <cstdint>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "verbena/buffer.h"
#include "verbena/device.h"
#include "verbena/dtype.h"
#include "verbena/shape.h"

namespace verbena {

// Part of a tensor: half-open ranges [begin, end), from the first dimension on; dimensions not
// named are taken whole.
//   TensorSlice(2, 5)                  rows 2, 3, 4
//   TensorSlice().NextAll().Next(0, 8) columns 0..7 of every row
// A class with constructors, so that a temporary is safe inside co_await on g++ 12.
class TensorSlice {
 public:
  static constexpr int64_t kEnd = INT64_MAX;  // to the dimension's end

  TensorSlice() {}
  TensorSlice(int64_t begin, int64_t end) { Append(begin, end); }
  TensorSlice& Next(int64_t begin, int64_t end) & { return Append(begin, end); }
  TensorSlice&& Next(int64_t begin, int64_t end) && { return std::move(Append(begin, end)); }
  TensorSlice& NextAll() & { return Append(0, kEnd); }
  TensorSlice&& NextAll() && { return std::move(Append(0, kEnd)); }

  // How many dimensions are named: may be more than Shape::kRankMax, which no tensor accepts.
  size_t count() const { return count_; }
  int64_t begin(size_t dimension) const { return begins_[dimension]; }
  int64_t end(size_t dimension) const { return ends_[dimension]; }
  std::string DebugString() const;

 private:
  TensorSlice& Append(int64_t begin, int64_t end) {
    if (count_ < Shape::kRankMax) begins_[count_] = begin, ends_[count_] = end;
    ++count_;
    return *this;
  }
  size_t count_ = 0;
  Shape begins_, ends_;
};

class Tensor {
 public:
  // No tensor: dtype() has no bits, data() is null.
  Tensor() = default;

  // Row-major, contents undefined. As Buffer::Allocate; INVALID_ARGUMENT names a shape or type
  // without a size.
  static absl::StatusOr<Tensor> Empty(DType dtype, const Shape& shape,
                                      Device device = Device::Host());
  // A view of `buffer`. `strides` in elements, may be zero or negative; empty means row-major.
  // `byte_offset` is where element [0, 0, ...] lies. INVALID_ARGUMENT: dtype, shape, or a different
  // number of strides; OUT_OF_RANGE: an element would lie outside the buffer (the range is named).
  static absl::StatusOr<Tensor> Wrap(Buffer buffer, DType dtype, const Shape& shape,
                                     const Shape& strides = Shape(), size_t byte_offset = 0);
  // Row-major, with a copy of `values`, whose number must be the shape's.
  template <class T>
  static absl::StatusOr<Tensor> Copy(absl::Span<const T> values, const Shape& shape,
                                     Device device = Device::Host()) {
    static_assert(kDTypeOf<T>.bits() != 0, "no dtype for T: specialise verbena::kDTypeOf<T>");
    return CopyBytes(values.data(), values.size() * sizeof(T), kDTypeOf<T>, shape, device);
  }
  // Row-major, with a copy of exactly `bytes` bytes at `data` (host memory). Blocks while it
  // copies. Any thread but a reactor's, if large.
  static absl::StatusOr<Tensor> CopyBytes(const void* data, size_t bytes, DType dtype,
                                          const Shape& shape, Device device = Device::Host());

  DType dtype() const { return dtype_; }
  const Shape& shape() const { return shape_; }
  // In elements; row-major ones when none were given. Of rank 0 and for no tensor: empty.
  Shape strides() const;
  int64_t elements() const { return dtype_.bits() == 0 ? 0 : shape_.elements(); }
  // Of all elements when packed row-major: what fetching it whole moves.
  size_t bytes() const;
  // Whether the elements lie packed in row-major order.
  bool contiguous() const { return strides_.empty(); }
  Device device() const { return buffer_.device(); }
  bool read_only() const { return buffer_.read_only(); }
  const Buffer& buffer() const { return buffer_; }
  size_t byte_offset() const { return byte_offset_; }
  // Of element [0, 0, ...], an address on device().
  const std::byte* data() const {
    return buffer_.data() == nullptr ? nullptr : buffer_.data() + byte_offset_;
  }
  // Null when read-only.
  std::byte* mutable_data() {
    return buffer_.mutable_data() == nullptr ? nullptr : buffer_.mutable_data() + byte_offset_;
  }

  // A part that shares the memory. OUT_OF_RANGE names dimension, range and size; INVALID_ARGUMENT:
  // a type below a byte and a part that does not begin on a byte.
  absl::StatusOr<Tensor> Slice(const TensorSlice& slice) const;

  // As Buffer::After: its producer is queued on `stream` now.
  //   producer<<<grid, block, 0, stream>>>(t.mutable_data(), ...);
  //   VERBENA_CO_ASSIGN_OR_RETURN(Tensor after, t.After(verbena::DeviceStream(stream)));
  //   reply.Attach(*reply->mutable_output(), std::move(after));
  absl::StatusOr<Tensor> After(DeviceStream stream) const;
  // All elements in row-major order, valid while this tensor or a copy lives. FAILED_PRECONDITION:
  // not host memory, not contiguous, misaligned for T, or (Mutable) read-only; INVALID_ARGUMENT: T
  // is not dtype().
  template <class T>
  absl::StatusOr<absl::Span<const T>> Values() const {
    static_assert(kDTypeOf<T>.bits() != 0, "no dtype for T: specialise verbena::kDTypeOf<T>");
    if (absl::Status s = CheckValues(kDTypeOf<T>, alignof(T)); !s.ok()) return s;
    return absl::MakeConstSpan(reinterpret_cast<const T*>(data()), bytes() / sizeof(T));
  }
  template <class T>
  absl::StatusOr<absl::Span<T>> MutableValues() {
    static_assert(kDTypeOf<T>.bits() != 0, "no dtype for T: specialise verbena::kDTypeOf<T>");
    if (absl::Status s = CheckValues(kDTypeOf<T>, alignof(T)); !s.ok()) return s;
    if (read_only()) return absl::FailedPreconditionError("the tensor's memory is read-only");
    return absl::MakeSpan(reinterpret_cast<T*>(mutable_data()), bytes() / sizeof(T));
  }

  // "float32[2, 3]", with strides, device and read-only where they are not the usual ones.
  std::string DebugString() const;

 private:
  absl::Status CheckValues(DType want, size_t alignment) const;

  Buffer buffer_;
  DType dtype_;
  Shape shape_;
  Shape strides_;  // empty: contiguous
  size_t byte_offset_ = 0;
};

}  // namespace verbena
