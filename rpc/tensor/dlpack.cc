#include "verbena/dlpack.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/tensor/dlpack_abi.h"
#include "rpc/tensor/layout.h"

namespace verbena {
namespace {

constexpr uint32_t kMajor = 1, kMinor = 0;  // what is written: nothing later is used
constexpr uint64_t kReadOnly = 1 << 0, kSubBytePadded = 1 << 2;

absl::StatusOr<Device> DeviceOf(const DLDevice& device) {
  switch (static_cast<int>(device.device_type)) {
    case kDLCPU:
    case kDLCUDAHost:
      return Device::Host();
    case kDLCUDA:
      return Device::Cuda(device.device_id);
    default:
      return absl::UnimplementedError(absl::StrCat("DLPack device type ",
                                                   static_cast<int>(device.device_type),
                                                   ": only CPU, CUDA and CUDAHost are known"));
  }
}

absl::StatusOr<Shape> ShapeOf(const int64_t* values, int32_t ndim) {
  if (ndim < 0 || (ndim > 0 && values == nullptr)) {
    return absl::InvalidArgumentError(absl::StrCat("a DLPack tensor of ", ndim, " dimensions",
                                                   values == nullptr ? " without a shape" : ""));
  }
  return Shape::From(absl::MakeConstSpan(values, static_cast<size_t>(ndim)));
}

// Checks everything, then takes the memory: `release` is moved from only on success.
absl::StatusOr<Tensor> Take(const DLTensor& dl, bool read_only, Buffer::Release release) {
  absl::StatusOr<Device> device = DeviceOf(dl.device);
  if (!device.ok()) return device.status();
  absl::StatusOr<Shape> shape = ShapeOf(dl.shape, dl.ndim);
  if (!shape.ok()) return shape.status();
  Shape strides;
  if (dl.strides != nullptr) strides = *Shape::From(absl::MakeConstSpan(dl.strides, shape->rank()));
  const DType dtype(static_cast<DTypeCode>(dl.dtype.code), dl.dtype.bits, dl.dtype.lanes);
  absl::StatusOr<internal::Reach> reach = internal::ReachOf(dtype, *shape, strides);
  if (!reach.ok()) return reach.status();
  const auto bytes = static_cast<size_t>(reach->end - reach->begin);
  if (dl.data == nullptr && bytes > 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("a DLPack tensor of ", bytes, " bytes without data"));
  }
  const uintptr_t first =
      reinterpret_cast<uintptr_t>(dl.data) + dl.byte_offset + static_cast<uint64_t>(reach->begin);
  auto* const data = reinterpret_cast<std::byte*>(first);
  Buffer buffer = read_only ? Buffer::WrapReadOnly(data, bytes, nullptr, *device)
                            : Buffer::Wrap(data, bytes, nullptr, *device);
  const auto offset = static_cast<size_t>(-reach->begin);
  absl::StatusOr<Tensor> checked = Tensor::Wrap(std::move(buffer), dtype, *shape, strides, offset);
  if (!checked.ok()) return checked.status();
  buffer = read_only ? Buffer::WrapReadOnly(data, bytes, std::move(release), *device)
                     : Buffer::Wrap(data, bytes, std::move(release), *device);
  return Tensor::Wrap(std::move(buffer), dtype, *shape, strides, offset);
}

template <class Managed>
Buffer::Release Deleter(Managed* managed) {
  return [managed] {
    if (managed->deleter != nullptr) managed->deleter(managed);
  };
}

template <class Managed>
struct Exported {
  Managed managed{};
  Tensor tensor;
  int64_t shape[Shape::kRankMax] = {};
  int64_t strides[Shape::kRankMax] = {};
};

template <class Managed>
void Delete(Managed* managed) {
  delete static_cast<Exported<Managed>*>(managed->manager_ctx);
}

template <class Managed>
absl::StatusOr<std::unique_ptr<Exported<Managed>>> Export(const Tensor& tensor) {
  if (tensor.dtype().bits() == 0) return absl::InvalidArgumentError("there is no tensor to export");
  DLDevice device{kDLCPU, 0};
  if (tensor.device().kind() == Device::Kind::kCuda) {
    device = DLDevice{kDLCUDA, tensor.device().index()};
  } else if (tensor.device().kind() != Device::Kind::kHost) {
    return absl::UnimplementedError(
        absl::StrCat("DLPack has no word for the device of ", tensor.DebugString()));
  }
  auto exported = std::make_unique<Exported<Managed>>();
  exported->tensor = tensor;
  const Shape strides = tensor.strides();
  std::copy(tensor.shape().begin(), tensor.shape().end(), exported->shape);
  std::copy(strides.begin(), strides.end(), exported->strides);
  DLTensor& dl = exported->managed.dl_tensor;
  // The offset is in `data` and not in `byte_offset`, which some consumers forget.
  dl.data = const_cast<std::byte*>(tensor.data());
  dl.device = device;
  dl.ndim = static_cast<int32_t>(tensor.shape().rank());
  dl.dtype = DLDataType{static_cast<uint8_t>(tensor.dtype().code()),
                        static_cast<uint8_t>(tensor.dtype().lane_bits()),
                        static_cast<uint16_t>(tensor.dtype().lanes())};
  dl.shape = exported->shape;
  dl.strides = exported->strides;
  exported->managed.manager_ctx = exported.get();
  exported->managed.deleter = Delete<Managed>;
  return exported;
}

}  // namespace

absl::StatusOr<Tensor> FromDlpack(DLManagedTensor* managed) {
  if (managed == nullptr) return absl::InvalidArgumentError("no DLPack tensor");
  return Take(managed->dl_tensor, false, Deleter(managed));
}

absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed) {
  if (managed == nullptr) return absl::InvalidArgumentError("no DLPack tensor");
  // Of a later major version only `version` and the deleter may be looked at.
  if (managed->version.major != kMajor) {
    return absl::UnimplementedError(absl::StrCat("DLPack version ", managed->version.major, ".",
                                                 managed->version.minor, "; ", kMajor,
                                                 ".x is known"));
  }
  if ((managed->flags & kSubBytePadded) != 0 && managed->dl_tensor.dtype.bits % 8 != 0) {
    return absl::UnimplementedError(absl::StrCat("elements of ", int{managed->dl_tensor.dtype.bits},
                                                 " bits that are padded to bytes"));
  }
  return Take(managed->dl_tensor, (managed->flags & kReadOnly) != 0, Deleter(managed));
}

absl::StatusOr<DLManagedTensorVersioned*> ToDlpack(const Tensor& tensor) {
  absl::StatusOr<std::unique_ptr<Exported<DLManagedTensorVersioned>>> exported =
      Export<DLManagedTensorVersioned>(tensor);
  if (!exported.ok()) return exported.status();
  (*exported)->managed.version.major = kMajor;
  (*exported)->managed.version.minor = kMinor;
  (*exported)->managed.flags = tensor.read_only() ? kReadOnly : 0;
  return &exported->release()->managed;
}

absl::StatusOr<DLManagedTensor*> ToDlpackUnversioned(const Tensor& tensor) {
  if (tensor.read_only()) {
    return absl::FailedPreconditionError(absl::StrCat(
        tensor.DebugString(), ": DLPack's unversioned form cannot say that; use ToDlpack"));
  }
  absl::StatusOr<std::unique_ptr<Exported<DLManagedTensor>>> exported =
      Export<DLManagedTensor>(tensor);
  if (!exported.ok()) return exported.status();
  return &exported->release()->managed;
}

}  // namespace verbena
