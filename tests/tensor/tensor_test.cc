#include "verbena/tensor.h"

#include <sys/mman.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <numeric>
#include <vector>

#include "tests/catch.h"
#include "verbena/placement.h"

namespace verbena {
namespace {

constexpr int64_t kHuge = std::numeric_limits<int64_t>::max();

Tensor Iota(const Shape& shape) {
  std::vector<int32_t> values(static_cast<size_t>(shape.elements()));
  std::iota(values.begin(), values.end(), 0);
  absl::StatusOr<Tensor> t = Tensor::Copy<int32_t>(values, shape);
  REQUIRE(t.ok());
  return *std::move(t);
}

// Address space without memory: a page exists once it is touched.
void* Reserve(size_t bytes) {
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  REQUIRE(memory != MAP_FAILED);
  return memory;
}

// Element by element, through strides: what a slow but obvious reader sees.
std::vector<int32_t> Elements(const Tensor& t) {
  std::vector<int32_t> seen;
  const Shape strides = t.strides();
  std::vector<int64_t> index(t.shape().rank(), 0);
  for (int64_t n = 0; n < t.elements(); ++n) {
    int64_t at = 0;
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * strides[i];
    int32_t value;
    std::memcpy(&value, t.data() + at * 4, 4);
    seen.push_back(value);
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < t.shape()[i]) break;
      index[i] = 0;
    }
  }
  return seen;
}

TEST_CASE("an empty tensor of each rank has the bytes its shape says", "[tensor]") {
  for (size_t rank = 0; rank <= Shape::kRankMax; ++rank) {
    const std::vector<int64_t> dims(rank, 2);
    absl::StatusOr<Tensor> t = Tensor::Empty(kFloat32, *Shape::From(dims));
    REQUIRE(t.ok());
    CHECK(t->bytes() == 4u << rank);
    CHECK(t->elements() == 1 << rank);
    CHECK(t->contiguous());
    CHECK(t->strides().rank() == rank);
  }
}

TEST_CASE("nine dimensions are refused with the limit named", "[tensor]") {
  const absl::StatusOr<Shape> shape = Shape::From(std::vector<int64_t>(9, 1));
  REQUIRE(absl::IsInvalidArgument(shape.status()));
  CHECK(std::string(shape.status().message()) == "9 dimensions; at most 8 are possible");
}

TEST_CASE("shapes whose bytes overflow are refused", "[tensor][hostile]") {
  const auto refused = [](DType dtype, const Shape& shape) {
    return absl::IsInvalidArgument(Tensor::Empty(dtype, shape).status());
  };
  CHECK(refused(kFloat32, {kHuge, kHuge}));
  CHECK(refused(kFloat32, {kHuge}));
  CHECK(refused(kFloat32, {int64_t{1} << 32, int64_t{1} << 31}));
  CHECK(refused(kUInt8, {kHuge / 8 + 1}));
  CHECK(refused(kFloat32, {-1}));
  CHECK(refused(kFloat32, {0, -1}));
  CHECK(refused(DType(), {1}));
  CHECK(refused(DType(DTypeCode::kFloat, 0), {1}));
  CHECK(refused(DType(DTypeCode::kFloat, 32, 0), {1}));
  CHECK(refused(DType(DTypeCode::kOpaqueHandle, 64), {1}));
  // A product that overflows before a zero comes is still zero elements.
  absl::StatusOr<Tensor> none = Tensor::Empty(kFloat32, {kHuge, kHuge, 0});
  REQUIRE(none.ok());
  CHECK(none->bytes() == 0);
}

TEST_CASE("a tensor that does not fit its buffer is refused", "[tensor][hostile]") {
  std::vector<std::byte> memory(48);
  const Buffer buffer = Buffer::Wrap(memory.data(), memory.size(), nullptr);
  const auto wrap = [&](const Shape& shape, const Shape& strides, size_t offset) {
    return Tensor::Wrap(buffer, kInt32, shape, strides, offset).status();
  };
  CHECK(wrap({12}, {}, 0).ok());
  CHECK(absl::IsOutOfRange(wrap({13}, {}, 0)));
  CHECK(absl::IsOutOfRange(wrap({12}, {}, 1)));
  CHECK(absl::IsOutOfRange(wrap({1}, {}, std::numeric_limits<size_t>::max())));
  CHECK(wrap({3, 4}, {1, 3}, 0).ok());
  CHECK(wrap({4}, {-1}, 12).ok());
  CHECK(absl::IsOutOfRange(wrap({4}, {-1}, 11)));
  CHECK(absl::IsOutOfRange(wrap({4}, {-1}, 48)));
  CHECK(wrap({1000}, {0}, 0).ok());
  CHECK(absl::IsOutOfRange(wrap({2, 2}, {11, 1}, 0)));
  CHECK(absl::IsOutOfRange(wrap({2}, {kHuge}, 0)));
  CHECK(absl::IsOutOfRange(wrap({2}, {std::numeric_limits<int64_t>::min()}, 0)));
  CHECK(absl::IsOutOfRange(wrap({2, 2, 2}, {kHuge / 2, kHuge / 2, kHuge / 2}, 0)));
  CHECK(absl::IsOutOfRange(wrap({2}, {2}, std::numeric_limits<size_t>::max() / 2)));
  CHECK(absl::IsInvalidArgument(wrap({2, 2}, {1}, 0)));
  CHECK(wrap({0}, {kHuge}, 48).ok());
  CHECK(absl::IsOutOfRange(wrap({0}, {}, 49)));
  CHECK(std::string(wrap({13}, {}, 0).message()) ==
        "int32[13] takes 52 bytes from byte 0, past the buffer's 48");
}

TEST_CASE("slices share memory and see the right elements", "[tensor][slice]") {
  const Tensor t = Iota({4, 3, 5});
  const absl::StatusOr<Tensor> rows = t.Slice(TensorSlice(1, 3));
  REQUIRE(rows.ok());
  CHECK(rows->shape() == Shape(2, 3, 5));
  CHECK(rows->contiguous());
  CHECK(rows->data() == t.data() + 15 * 4);
  CHECK(rows->buffer().use_count() == 2);

  const absl::StatusOr<Tensor> box = t.Slice(TensorSlice(1, 3).Next(0, 2).Next(2, 5));
  REQUIRE(box.ok());
  CHECK_FALSE(box->contiguous());
  CHECK(Elements(*box) == std::vector<int32_t>{17, 18, 19, 22, 23, 24, 32, 33, 34, 37, 38, 39});

  // A slice of a slice.
  const absl::StatusOr<Tensor> inner =
      box->Slice(TensorSlice(1, 2).NextAll().Next(1, TensorSlice::kEnd));
  REQUIRE(inner.ok());
  CHECK(Elements(*inner) == std::vector<int32_t>{33, 34, 38, 39});

  const absl::StatusOr<Tensor> none = t.Slice(TensorSlice(4, 4));
  REQUIRE(none.ok());
  CHECK(none->bytes() == 0);
  CHECK(none->contiguous());
}

TEST_CASE("a slice outside its dimension is refused with the range named",
          "[tensor][slice][hostile]") {
  const Tensor t = Iota({4, 3});
  CHECK(absl::IsOutOfRange(t.Slice(TensorSlice(0, 5)).status()));
  CHECK(absl::IsOutOfRange(t.Slice(TensorSlice(-1, 2)).status()));
  CHECK(absl::IsOutOfRange(t.Slice(TensorSlice(3, 2)).status()));
  CHECK(absl::IsOutOfRange(t.Slice(TensorSlice(5, TensorSlice::kEnd)).status()));
  CHECK(absl::IsOutOfRange(t.Slice(TensorSlice(0, 1).Next(0, 1).Next(0, 1)).status()));
  TensorSlice many;
  for (int i = 0; i < 20; ++i) many.NextAll();
  CHECK(absl::IsOutOfRange(t.Slice(many).status()));
  CHECK(std::string(t.Slice(TensorSlice().NextAll().Next(1, 9)).status().message()) ==
        "[1, 9) of dimension 1, which has 3 elements");
  CHECK_FALSE(Tensor().Slice(TensorSlice(0, 1)).ok());
  CHECK_FALSE(Iota({}).Slice(TensorSlice(0, 1)).ok());
}

TEST_CASE("negative and zero strides view the same memory", "[tensor][strides]") {
  const Tensor t = Iota({6});
  const absl::StatusOr<Tensor> back = Tensor::Wrap(t.buffer(), kInt32, {6}, {-1}, 20);
  REQUIRE(back.ok());
  CHECK(Elements(*back) == std::vector<int32_t>{5, 4, 3, 2, 1, 0});
  const absl::StatusOr<Tensor> part = back->Slice(TensorSlice(2, 4));
  REQUIRE(part.ok());
  CHECK(Elements(*part) == std::vector<int32_t>{3, 2});
  const absl::StatusOr<Tensor> spread = Tensor::Wrap(t.buffer(), kInt32, {2, 3}, {0, 2});
  REQUIRE(spread.ok());
  CHECK(Elements(*spread) == std::vector<int32_t>{0, 2, 4, 0, 2, 4});
}

TEST_CASE("strides that say row-major make a contiguous tensor", "[tensor][strides]") {
  const Tensor t = Iota({2, 3});
  CHECK(Tensor::Wrap(t.buffer(), kInt32, {2, 3}, {3, 1})->contiguous());
  CHECK(Tensor::Wrap(t.buffer(), kInt32, {1, 6}, {kHuge, 1})->contiguous());
  CHECK_FALSE(Tensor::Wrap(t.buffer(), kInt32, {3, 2}, {1, 3})->contiguous());
}

TEST_CASE("values are typed and checked", "[tensor][values]") {
  Tensor t = Iota({2, 3});
  REQUIRE(t.Values<int32_t>().ok());
  CHECK(t.Values<int32_t>()->size() == 6);
  CHECK(absl::IsInvalidArgument(t.Values<float>().status()));
  CHECK(std::string(t.Values<float>().status().message()) == "the tensor holds int32, not float32");
  (*t.MutableValues<int32_t>())[5] = 70;
  CHECK((*t.Values<int32_t>())[5] == 70);

  absl::StatusOr<Tensor> column = t.Slice(TensorSlice().NextAll().Next(0, 1));
  CHECK(absl::IsFailedPrecondition(column->Values<int32_t>().status()));

  alignas(8) std::byte memory[12] = {};
  const Buffer odd = Buffer::Wrap(memory, sizeof(memory), nullptr);
  CHECK(absl::IsFailedPrecondition(
      Tensor::Wrap(odd, kInt32, {2}, {}, 1)->Values<int32_t>().status()));

  absl::StatusOr<Tensor> constant =
      Tensor::Wrap(Buffer::WrapReadOnly(memory, 8, nullptr), kInt32, {2});
  REQUIRE(constant.ok());
  CHECK(constant->Values<int32_t>().ok());
  CHECK(absl::IsFailedPrecondition(constant->MutableValues<int32_t>().status()));
  CHECK(constant->mutable_data() == nullptr);
  CHECK(absl::IsFailedPrecondition(
      Tensor::Wrap(Buffer::Wrap(memory, 8, nullptr, Device::Cuda(3)), kInt32, {2})
          ->Values<int32_t>()
          .status()));
}

TEST_CASE("types below a byte are packed and cut on bytes only", "[tensor][subbyte]") {
  absl::StatusOr<Tensor> nibbles = Tensor::Empty(kInt4, {3, 4});
  REQUIRE(nibbles.ok());
  CHECK(nibbles->bytes() == 6);
  CHECK(Tensor::Empty(kInt4, {3})->bytes() == 2);
  CHECK(Tensor::Empty(kFloat6E2M3FN, {5})->bytes() == 4);
  CHECK(Tensor::Empty(kFloat4E2M1FNx2, {5})->bytes() == 5);

  CHECK(nibbles->Slice(TensorSlice(1, 3))->byte_offset() == 2);
  CHECK(nibbles->Slice(TensorSlice().NextAll().Next(2, 4))->byte_offset() == 1);
  CHECK(absl::IsInvalidArgument(nibbles->Slice(TensorSlice().NextAll().Next(1, 4)).status()));
  absl::StatusOr<Tensor> odd_rows = Tensor::Empty(kInt4, {4, 3});
  CHECK(odd_rows->Slice(TensorSlice(2, 4)).ok());
  const absl::Status refused = odd_rows->Slice(TensorSlice(1, 4)).status();
  CHECK(std::string(refused.message()) == "the slice of int4 begins at bit 12, not on a byte");
}

TEST_CASE("a tensor above 4 GiB is addressed in full", "[tensor][large]") {
  static constexpr uint64_t kBytes = uint64_t{5} << 30;
  const absl::StatusOr<Tensor> t = [&] {
    void* const memory = Reserve(kBytes);
    return Tensor::Wrap(Buffer::Wrap(memory, kBytes, [memory] { munmap(memory, kBytes); }), kUInt8,
                        {5, int64_t{1} << 30});
  }();
  REQUIRE(t.ok());
  CHECK(t->bytes() == kBytes);
  absl::StatusOr<Tensor> last =
      t->Slice(TensorSlice(4, 5).Next((int64_t{1} << 30) - 8, TensorSlice::kEnd));
  REQUIRE(last.ok());
  CHECK(last->byte_offset() == kBytes - 8);
  (*last->MutableValues<uint8_t>())[7] = 9;
  CHECK(t->data()[kBytes - 1] == std::byte{9});
}

TEST_CASE("a copy takes exactly the shape's bytes", "[tensor]") {
  const std::vector<float> values{1, 2, 3, 4};
  const absl::StatusOr<Tensor> t = Tensor::Copy<float>(values, {2, 2});
  REQUIRE(t.ok());
  CHECK(*t->Values<float>() == absl::MakeConstSpan(values));
  CHECK(absl::IsInvalidArgument(Tensor::Copy<float>(values, {5}).status()));
  CHECK(absl::IsInvalidArgument(Tensor::Copy<float>(values, {3}).status()));
  CHECK(Tensor::Copy<float>({}, {0}).ok());
}

TEST_CASE("a tensor describes itself", "[tensor]") {
  CHECK(Tensor().DebugString() == "no tensor");
  CHECK(Tensor::Empty(kBFloat16, {2, 3})->DebugString() == "bfloat16[2, 3]");
  CHECK(Tensor::Empty(kFloat32, Shape())->DebugString() == "float32[]");
  std::byte memory[64];
  CHECK(Tensor::Wrap(Buffer::WrapReadOnly(memory, 64, nullptr, Device::Cuda(1)), kFloat8E4M3FN,
                     {2, 3}, {1, 2})
            ->DebugString() == "float8_e4m3fn[2, 3] strides [1, 2] on cuda:1 read-only");
  CHECK(TensorSlice(1, 2).NextAll().Next(0, 4).DebugString() == "[1:2, :, :4]");
}

TEST_CASE("a placement is small and holds its destinations", "[tensor][placement]") {
  CHECK(sizeof(Placement) <= 40);  // device, path, stream, destinations
  CHECK(Placement().device() == Device::Host());
  CHECK(Placement(Device::Cuda(2)).device() == Device::Cuda(2));
  const Placement into = Placement::Into(Iota({2}), Iota({3}));
  REQUIRE(into.destinations() == 2);
  CHECK(into.destination(1)->shape() == Shape(3));
  CHECK(into.destination(2) == nullptr);
  CHECK(Placement().destination() == nullptr);
}

}  // namespace
}  // namespace verbena
