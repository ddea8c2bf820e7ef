#include "verbena/tensor.h"

#include "absl/strings/str_cat.h"
#include "rpc/memory/copy_now.h"
#include "rpc/memory/device.h"
#include "rpc/tensor/layout.h"

namespace verbena {
std::string TensorSlice::DebugString() const {
  std::string text = "[";
  for (size_t i = 0; i < count_ && i < Shape::kRankMax; ++i) {
    if (i > 0) text += ", ";
    if (begins_[i] != 0) absl::StrAppend(&text, begins_[i]);
    text += ":";
    if (ends_[i] != kEnd) absl::StrAppend(&text, ends_[i]);
  }
  return text + (count_ > Shape::kRankMax ? ", ...]" : "]");
}

absl::StatusOr<Tensor> Tensor::Empty(DType dtype, const Shape& shape, Device device) {
  absl::StatusOr<uint64_t> bytes = internal::PackedBytes(dtype, shape);
  if (!bytes.ok()) return bytes.status();
  absl::StatusOr<Buffer> buffer = Buffer::Allocate(*bytes, device);
  if (!buffer.ok()) return buffer.status();
  return Wrap(*std::move(buffer), dtype, shape);
}

absl::StatusOr<Tensor> Tensor::Wrap(Buffer buffer, DType dtype, const Shape& shape,
                                    const Shape& strides, size_t byte_offset) {
  absl::StatusOr<internal::Layout> layout =
      internal::Layout::Make(dtype, shape, strides, byte_offset, buffer.bytes());
  if (!layout.ok()) return layout.status();
  Tensor t;
  t.buffer_ = std::move(buffer);
  t.dtype_ = dtype;
  t.shape_ = shape;
  t.strides_ = layout->strides();
  t.byte_offset_ = byte_offset;
  return t;
}

absl::StatusOr<Tensor> Tensor::CopyBytes(const void* data, size_t bytes, DType dtype,
                                         const Shape& shape, Device device) {
  absl::StatusOr<uint64_t> need = internal::PackedBytes(dtype, shape);
  if (!need.ok()) return need.status();
  if (*need != bytes) {
    return absl::InvalidArgumentError(absl::StrCat(dtype.DebugString(), shape.DebugString(),
                                                   " takes ", *need, " bytes, not ", bytes));
  }
  absl::StatusOr<Tensor> t = Empty(dtype, shape, device);
  if (!t.ok()) return t.status();
  const memory::CopyPiece all{t->mutable_data(), static_cast<const std::byte*>(data), bytes};
  absl::Status copied = memory::CopyNow(device, {&all, 1});
  if (!copied.ok()) return copied;
  return t;
}

Shape Tensor::strides() const {
  return contiguous() ? internal::RowMajorStrides(shape_) : strides_;
}

size_t Tensor::bytes() const {
  // Checked when the tensor was made: neither product overflows.
  return (static_cast<size_t>(elements()) * static_cast<size_t>(dtype_.bits()) + 7) / 8;
}

absl::StatusOr<Tensor> Tensor::Slice(const TensorSlice& slice) const {
  absl::StatusOr<internal::Layout> layout =
      internal::Layout::Make(dtype_, shape_, strides_, byte_offset_, buffer_.bytes());
  if (!layout.ok()) return layout.status();  // only a Tensor of no type
  absl::StatusOr<internal::Layout> part = layout->Slice(slice);
  if (!part.ok()) return part.status();
  Tensor t = *this;
  t.shape_ = part->shape();
  t.strides_ = part->strides();
  t.byte_offset_ = part->byte_offset();
  return t;
}

absl::StatusOr<Tensor> Tensor::After(DeviceStream stream) const {
  absl::StatusOr<Buffer> after = buffer_.After(stream);
  if (!after.ok()) return after.status();
  Tensor t = *this;
  t.buffer_ = *std::move(after);
  return t;
}

absl::Status Tensor::CheckValues(DType want, size_t alignment) const {
  if (!(dtype_ == want)) {
    return absl::InvalidArgumentError(
        absl::StrCat("the tensor holds ", dtype_.DebugString(), ", not ", want.DebugString()));
  }
  if (!(device() == Device::Host())) {
    return absl::FailedPreconditionError(absl::StrCat(
        "the tensor lies on ", memory::NameOf(device()), "; fetch or copy it to the host first"));
  }
  if (!contiguous()) {
    return absl::FailedPreconditionError(
        absl::StrCat(DebugString(), " is not contiguous: its values are not one range"));
  }
  if (reinterpret_cast<uintptr_t>(data()) % alignment != 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("the tensor begins at an address that is not a multiple of ", alignment,
                     " bytes, as ", want.DebugString(), " needs"));
  }
  return absl::OkStatus();
}

std::string Tensor::DebugString() const {
  if (dtype_.bits() == 0) return "no tensor";
  std::string text = absl::StrCat(dtype_.DebugString(), shape_.DebugString());
  if (!contiguous()) absl::StrAppend(&text, " strides ", strides_.DebugString());
  if (!(device() == Device::Host())) absl::StrAppend(&text, " on ", memory::NameOf(device()));
  if (read_only()) text += " read-only";
  return text;
}

}  // namespace verbena
