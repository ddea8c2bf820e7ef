#include "rpc/tensor/descriptor.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::internal {
namespace {

// How far below the first element a tensor reaches, in elements; saturates.
uint64_t ElementsBelow(const Shape& shape, const Shape& strides) {
  __int128 below = 0;
  for (size_t i = 0; i < std::min(strides.rank(), shape.rank()); ++i) {
    if (shape[i] <= 0) return 0;
    if (strides[i] < 0) below -= static_cast<__int128>(strides[i]) * (shape[i] - 1);
  }
  return below > INT64_MAX ? INT64_MAX : static_cast<uint64_t>(below);
}

}  // namespace

ByteSpan SpanOf(const Tensor& tensor) {
  if (tensor.bytes() == 0) return {};
  if (tensor.contiguous()) return {tensor.byte_offset(), tensor.bytes()};
  // Strided tensors have whole bytes per element, and Tensor::Wrap has checked the range.
  const uint64_t element = static_cast<uint64_t>(tensor.dtype().bits()) / 8;
  const Shape strides = tensor.strides();
  const uint64_t below = ElementsBelow(tensor.shape(), strides);
  uint64_t above = 0;
  for (size_t i = 0; i < strides.rank(); ++i) {
    if (strides[i] > 0) above += static_cast<uint64_t>(strides[i] * (tensor.shape()[i] - 1));
  }
  return {tensor.byte_offset() - below * element, (below + above + 1) * element};
}

void Describe(const Tensor& tensor, v1::Tensor& descriptor) {
  descriptor.set_dtype(tensor.dtype().word());
  descriptor.clear_shape();
  descriptor.clear_strides();
  for (const int64_t d : tensor.shape()) descriptor.add_shape(d);
  if (tensor.contiguous()) return;
  for (const int64_t s : tensor.strides()) descriptor.add_strides(s);
}

absl::StatusOr<Layout> LayoutOf(const v1::Tensor& descriptor, uint64_t payload_bytes) {
  absl::StatusOr<Shape> shape = Shape::From(
      absl::MakeConstSpan(descriptor.shape().data(), static_cast<size_t>(descriptor.shape_size())));
  if (!shape.ok()) return shape.status();
  absl::StatusOr<Shape> strides = Shape::From(absl::MakeConstSpan(
      descriptor.strides().data(), static_cast<size_t>(descriptor.strides_size())));
  if (!strides.ok()) return strides.status();
  const DType dtype = DType::FromWord(descriptor.dtype());
  const uint64_t below = ElementsBelow(*shape, *strides);
  const uint64_t element = static_cast<uint64_t>(dtype.bits()) / 8;
  if (element != 0 && below > payload_bytes / element) {
    return absl::OutOfRangeError(absl::StrCat(
        "strides ", strides->DebugString(), " reach below a payload of ", payload_bytes, " bytes"));
  }
  return Layout::Make(dtype, *shape, *strides, below * element, payload_bytes);
}

}  // namespace verbena::internal
