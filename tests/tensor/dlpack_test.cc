#include "verbena/dlpack.h"

#include <cstdint>
#include <vector>

#include "rpc/memory/fake_device.h"
#include "rpc/tensor/dlpack_abi.h"
#include "tests/catch.h"

namespace verbena {
namespace {

// A producer that counts how often it is released.
template <class Managed>
struct Producer {
  Managed managed{};
  std::vector<int64_t> shape, strides;
  std::vector<int32_t> values = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  int deleted = 0;

  Producer(std::vector<int64_t> dims, std::vector<int64_t> steps)
      : shape(std::move(dims)), strides(std::move(steps)) {
    DLTensor& dl = managed.dl_tensor;
    dl.data = values.data();
    dl.device = DLDevice{kDLCPU, 0};
    dl.ndim = static_cast<int32_t>(shape.size());
    dl.dtype = DLDataType{0, 32, 1};
    dl.shape = shape.data();
    dl.strides = strides.empty() ? nullptr : strides.data();
    managed.manager_ctx = this;
    managed.deleter = [](Managed* m) { ++static_cast<Producer*>(m->manager_ctx)->deleted; };
    if constexpr (std::is_same_v<Managed, DLManagedTensorVersioned>) managed.version = {1, 1};
  }
};

TEMPLATE_TEST_CASE("an imported tensor shares memory and is released once", "[dlpack]",
                   DLManagedTensor, DLManagedTensorVersioned) {
  Producer<TestType> producer({3, 4}, {});
  {
    absl::StatusOr<Tensor> t = FromDlpack(&producer.managed);
    REQUIRE(t.ok());
    CHECK(t->DebugString() == "int32[3, 4]");
    CHECK(static_cast<const void*>(t->data()) == producer.values.data());
    const Tensor copy = *t;
    absl::StatusOr<Tensor> row = t->Slice(TensorSlice(1, 2));
    *t = Tensor();
    CHECK(producer.deleted == 0);
    CHECK(row->Values<int32_t>()->at(3) == 7);
  }
  CHECK(producer.deleted == 1);
}

TEMPLATE_TEST_CASE("byte offset and strides are honoured, negative ones too", "[dlpack]",
                   DLManagedTensor, DLManagedTensorVersioned) {
  Producer<TestType> producer({2, 3}, {-4, 1});
  producer.managed.dl_tensor.byte_offset = 8 * 4;
  absl::StatusOr<Tensor> t = FromDlpack(&producer.managed);
  REQUIRE(t.ok());
  CHECK(static_cast<const void*>(t->data()) == producer.values.data() + 8);
  CHECK(t->buffer().bytes() == 7 * 4);
  CHECK(static_cast<const void*>(t->buffer().data()) == producer.values.data() + 4);
  absl::StatusOr<Tensor> second = t->Slice(TensorSlice(1, 2));
  CHECK(second->Values<int32_t>()->at(0) == 4);
}

TEST_CASE("the read-only flag makes a read-only tensor", "[dlpack]") {
  Producer<DLManagedTensorVersioned> producer({12}, {});
  producer.managed.flags = 1;
  absl::StatusOr<Tensor> t = FromDlpack(&producer.managed);
  REQUIRE(t.ok());
  CHECK(t->read_only());
  CHECK(absl::IsFailedPrecondition(ToDlpackUnversioned(*t).status()));
  absl::StatusOr<DLManagedTensorVersioned*> out = ToDlpack(*t);
  REQUIRE(out.ok());
  CHECK((*out)->flags == 1);
  (*out)->deleter(*out);
}

TEST_CASE("device types are mapped or refused", "[dlpack]") {
  const auto device_of = [](int type, int id) -> absl::StatusOr<Device> {
    Producer<DLManagedTensor> producer({12}, {});
    producer.managed.dl_tensor.device = DLDevice{static_cast<DLDeviceType>(type), id};
    absl::StatusOr<Tensor> t = FromDlpack(&producer.managed);
    if (!t.ok()) return t.status();
    return t->device();
  };
  CHECK(*device_of(kDLCPU, 0) == Device::Host());
  CHECK(*device_of(kDLCUDAHost, 1) == Device::Host());
  CHECK(*device_of(kDLCUDA, 5) == Device::Cuda(5));
  CHECK(absl::IsUnimplemented(device_of(10, 0).status()));
}

TEST_CASE("what is no tensor is refused and stays the caller's", "[dlpack][hostile]") {
  const auto refusal = [](auto change) {
    Producer<DLManagedTensorVersioned> producer({3, 4}, {4, 1});
    change(producer.managed);
    const absl::Status status = FromDlpack(&producer.managed).status();
    CHECK(producer.deleted == (status.ok() ? 1 : 0));
    return status;
  };
  using Managed = DLManagedTensorVersioned;
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.ndim = -1; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.shape = nullptr; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.data = nullptr; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.shape[0] = -3; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.shape[0] = INT64_MAX; })));
  CHECK(absl::IsOutOfRange(refusal([](Managed& m) { m.dl_tensor.strides[0] = INT64_MIN; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.dtype.lanes = 0; })));
  CHECK(absl::IsInvalidArgument(refusal([](Managed& m) { m.dl_tensor.dtype = {3, 64, 1}; })));
  CHECK(absl::IsUnimplemented(refusal([](Managed& m) { m.version.major = 2; })));
  CHECK(absl::IsUnimplemented(refusal([](Managed& m) {
    m.dl_tensor.dtype = {0, 4, 1}, m.flags = 4;
  })));
  CHECK(refusal([](Managed& m) { m.version.minor = 99; }).ok());
  CHECK(absl::IsInvalidArgument(FromDlpack(static_cast<DLManagedTensor*>(nullptr)).status()));
  std::vector<int64_t> ones(9, 1);
  const absl::Status nine =
      refusal([&](Managed& m) { m.dl_tensor.ndim = 9, m.dl_tensor.shape = ones.data(); });
  CHECK(std::string(nine.message()) == "9 dimensions; at most 8 are possible");
}

TEST_CASE("tensors without elements or dimensions pass", "[dlpack]") {
  Producer<DLManagedTensor> none({0, 4}, {4, 1});
  none.managed.dl_tensor.data = nullptr;
  {
    absl::StatusOr<Tensor> t = FromDlpack(&none.managed);
    REQUIRE(t.ok());
    CHECK(t->bytes() == 0);
  }
  CHECK(none.deleted == 1);
  Producer<DLManagedTensor> scalar({}, {});
  scalar.managed.dl_tensor.shape = nullptr;
  CHECK(FromDlpack(&scalar.managed)->elements() == 1);
  Producer<DLManagedTensor> no_deleter({12}, {});
  no_deleter.managed.deleter = nullptr;
  CHECK(FromDlpack(&no_deleter.managed).ok());
}

TEST_CASE("an exported tensor always has strides and comes back the same", "[dlpack]") {
  const std::vector<float> values = {1, 2, 3, 4, 5, 6};
  absl::StatusOr<Tensor> t = Tensor::Copy<float>(values, {2, 3});
  absl::StatusOr<Tensor> column = t->Slice(TensorSlice().NextAll().Next(1, 2));
  absl::StatusOr<DLManagedTensor*> out = ToDlpackUnversioned(*column);
  REQUIRE(out.ok());
  CHECK((*out)->dl_tensor.ndim == 2);
  CHECK((*out)->dl_tensor.strides[0] == 3);
  CHECK((*out)->dl_tensor.strides[1] == 1);
  CHECK((*out)->dl_tensor.byte_offset == 0);
  CHECK(*static_cast<float*>((*out)->dl_tensor.data) == 2);
  CHECK(t->buffer().use_count() == 3);
  {
    absl::StatusOr<Tensor> back = FromDlpack(*out);
    REQUIRE(back.ok());
    CHECK(back->shape() == column->shape());
    CHECK(back->strides() == column->strides());
    CHECK(back->data() == column->data());
  }
  CHECK(t->buffer().use_count() == 2);

  absl::StatusOr<DLManagedTensorVersioned*> scalar = ToDlpack(*Tensor::Empty(kBFloat16, Shape()));
  CHECK((*scalar)->dl_tensor.strides != nullptr);
  CHECK((*scalar)->version.major == 1);
  CHECK((*scalar)->dl_tensor.dtype.code == 4);
  (*scalar)->deleter(*scalar);
  CHECK(absl::IsInvalidArgument(ToDlpack(Tensor()).status()));
}

TEST_CASE("memory that DLPack has no word for is not exported", "[dlpack]") {
  memory::FakeDevice::Install(7);
  absl::StatusOr<Tensor> t = Tensor::Empty(kFloat32, {4}, Device::Fake(7));
  REQUIRE(t.ok());
  CHECK(absl::IsUnimplemented(ToDlpack(*t).status()));
}

}  // namespace
}  // namespace verbena
