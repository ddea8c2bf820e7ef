#include "rpc/tensor/layout.h"

#include <cstdint>
#include <limits>
#include <random>
#include <utility>
#include <vector>

#include "tests/catch.h"

namespace verbena::internal {
namespace {

using Runs = std::vector<std::pair<uint64_t, uint64_t>>;

Runs RunsOf(const Layout& layout) {
  Runs runs;
  layout.ForEachRun([&](uint64_t offset, uint64_t bytes) {
    runs.emplace_back(offset, bytes);
    return true;
  });
  return runs;
}

// Offset of each element's first byte, in row-major order, the slow way.
std::vector<uint64_t> ElementOffsets(const Layout& layout, const Shape& strides) {
  std::vector<uint64_t> offsets;
  std::vector<int64_t> index(layout.shape().rank(), 0);
  const int64_t element = layout.dtype().bits() / 8;
  for (int64_t n = 0; n < layout.shape().elements(); ++n) {
    int64_t at = static_cast<int64_t>(layout.byte_offset());
    for (size_t i = 0; i < index.size(); ++i) at += index[i] * strides[i] * element;
    offsets.push_back(static_cast<uint64_t>(at));
    for (size_t i = index.size(); i-- > 0;) {
      if (++index[i] < layout.shape()[i]) break;
      index[i] = 0;
    }
  }
  return offsets;
}

TEST_CASE("a contiguous layout is one run", "[layout]") {
  const absl::StatusOr<Layout> layout = Layout::Make(kFloat32, {4, 5}, {}, 8, 1000);
  REQUIRE(layout.ok());
  CHECK(RunsOf(*layout) == Runs{{8, 80}});
  CHECK(RunsOf(*layout->Slice(TensorSlice(1, 3))) == Runs{{28, 40}});
  CHECK(RunsOf(*layout->Slice(TensorSlice().NextAll().Next(1, 3))) ==
        Runs{{12, 8}, {32, 8}, {52, 8}, {72, 8}});
  CHECK(RunsOf(*layout->Slice(TensorSlice(2, 2))).empty());
}

TEST_CASE("a run can stop the walk", "[layout]") {
  const Layout layout = *Layout::Make(kUInt8, {100, 2}, {3, 1}, 0, 300);
  int seen = 0;
  CHECK_FALSE(layout.ForEachRun([&](uint64_t, uint64_t) { return ++seen < 7; }));
  CHECK(seen == 7);
}

TEST_CASE("runs of random layouts and slices visit each element once, in order", "[layout]") {
  std::mt19937 random(20261129);
  const auto pick = [&](int64_t low, int64_t high) {
    return std::uniform_int_distribution<int64_t>(low, high)(random);
  };
  int made = 0;
  for (int round = 0; round < 3000; ++round) {
    const auto rank = static_cast<size_t>(pick(0, 4));
    std::vector<int64_t> dims(rank), steps(rank);
    for (int64_t& d : dims) d = pick(0, 4);
    for (int64_t& s : steps) s = pick(-6, 12);
    const Shape shape = *Shape::From(dims);
    const Shape strides = pick(0, 3) == 0 ? Shape() : *Shape::From(steps);
    const DType dtype = pick(0, 1) == 0 ? kUInt8 : kInt32;
    constexpr uint64_t kPayload = 300;
    const absl::StatusOr<Layout> whole =
        Layout::Make(dtype, shape, strides, static_cast<uint64_t>(pick(0, 200)), kPayload);
    if (!whole.ok()) continue;
    TensorSlice slice;
    for (size_t i = 0; i < rank && pick(0, 4) > 0; ++i) {
      const int64_t begin = pick(0, dims[i]);
      slice.Next(begin, pick(begin, dims[i]));
    }
    const absl::StatusOr<Layout> part = whole->Slice(slice);
    REQUIRE(part.ok());
    ++made;
    const Shape part_strides =
        part->contiguous() ? RowMajorStrides(part->shape()) : part->strides();
    std::vector<uint64_t> expected = ElementOffsets(*part, part_strides);
    std::vector<uint64_t> seen;
    const auto element = static_cast<uint64_t>(dtype.bits() / 8);
    for (const auto& [offset, bytes] : RunsOf(*part)) {
      REQUIRE(offset + bytes <= kPayload);
      for (uint64_t at = 0; at < bytes; at += element) seen.push_back(offset + at);
    }
    REQUIRE(seen == expected);
  }
  CHECK(made > 1000);
}

TEST_CASE("numbers from a peer that overflow are refused", "[layout][hostile]") {
  constexpr int64_t kBig = std::numeric_limits<int64_t>::max();
  constexpr int64_t kLow = std::numeric_limits<int64_t>::min();
  std::mt19937_64 random(7);
  const int64_t values[] = {kBig, kLow, kBig / 2, kLow / 2, kBig / 8,
                            -1,   0,    1,        2,        int64_t{1} << 32};
  const auto pick = [&] { return values[random() % std::size(values)]; };
  for (int round = 0; round < 20000; ++round) {
    Shape shape{pick(), pick(), pick()};
    Shape strides{pick(), pick(), pick()};
    const uint64_t payload = random() % 4096;
    const auto offset = static_cast<uint64_t>(pick());
    const DType dtype = DType::FromWord(static_cast<uint32_t>(random()));
    const absl::StatusOr<Layout> layout = Layout::Make(dtype, shape, strides, offset, payload);
    if (!layout.ok()) continue;
    // What is accepted lies inside, whatever the numbers were.
    CHECK(layout->byte_offset() <= payload);
    if (layout->contiguous()) CHECK(layout->byte_offset() + layout->bytes() <= payload);
    layout->Slice(TensorSlice(pick(), pick()).Next(pick(), pick())).status().IgnoreError();
  }
  CHECK(absl::IsOutOfRange(ReachOf(kFloat32, {2}, {kBig}).status()));
  CHECK(absl::IsOutOfRange(ReachOf(kFloat32, {2}, {kLow}).status()));
  CHECK(ReachOf(kFloat32, {3, 2}, {-2, 1})->begin == -16);
  CHECK(ReachOf(kFloat32, {3, 2}, {-2, 1})->end == 8);
  CHECK(ReachOf(kInt4, {3}, {-1})->begin == -1);
}

}  // namespace
}  // namespace verbena::internal
