// Real GPUs: tensors in the order of users' streams, also of such as stand still.
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "tests/gpu/machine/reader.h"

namespace verbena::gpu_test {
namespace {

TEST_CASE("a tensor is told of when the stream that writes it has got there", "[machine]") {
  Reader reader;
  reader.Get(Of("malloc", 4096));  // it is there
  const size_t bytes = 8 << 20;
  Buffer source = UserMemory::Make("malloc", 0, bytes), mine = UserMemory::Make("malloc", 0, bytes);
  FillAt(source.device(), source.mutable_data(), bytes, 31);
  FillAt(mine.device(), mine.mutable_data(), bytes, 7777);
  for (int round = 0; round < 3; ++round) {
    HeldStream stream(0);
    stream.Hold();
    stream.Copy(mine.mutable_data(), source.data(), bytes);
    const Tensor tensor = *Tensor::Wrap(mine, kUInt8, Shape(static_cast<int64_t>(bytes)));
    auto after = tensor.After(DeviceStream(stream.handle()));
    REQUIRE(after.ok());
    Parcel<::gpu_test::Taken> taken;
    taken->set_gpu(Gpus() - 1);
    taken->set_seed(31);
    taken.Attach(*taken->mutable_tensor(), *after);
    auto call = reader.stub.Take(taken);
    std::this_thread::sleep_for(std::chrono::milliseconds(round * 10));
    CHECK_FALSE(call.done());
    stream.Release();
    auto seen = std::move(call).Get();
    INFO(seen.status().ToString());
    REQUIRE(seen.ok());
    CHECK(seen->right());
    FillAt(mine.device(), mine.mutable_data(), bytes, 7777);
  }
}

TEST_CASE("bytes arrive in the order of the stream that uses their place", "[machine]") {
  Reader reader;
  const size_t bytes = 8 << 20;
  const int to = Gpus() - 1;
  const Shape shape(static_cast<int64_t>(bytes));
  auto given = reader.Get(Of("library", bytes, 0, 12));
  Tensor into = *Tensor::Empty(kUInt8, shape, Device::Cuda(to));
  Tensor before = *Tensor::Empty(kUInt8, shape, Device::Cuda(to));
  Tensor after = *Tensor::Empty(kUInt8, shape, Device::Cuda(to));
  FillAt(into.device(), into.mutable_data(), bytes, 500);
  HeldStream stream(to);
  stream.Hold();
  stream.Copy(before.mutable_data(), into.data(), bytes);
  auto fetch =
      given.Fetch(given->tensor(), Placement::Into(into).InStream(DeviceStream(stream.handle())));
  // It ends while the stream is held: it stands in it.
  const absl::Status status = std::move(fetch).Get().status();
  INFO(status.ToString());
  REQUIRE(status.ok());
  stream.Release();
  stream.Copy(after.mutable_data(), into.data(), bytes);
  stream.Synchronize();
  CHECK(FirstWrong(before.device(), before.data(), bytes, 500) == bytes / 4);
  CHECK(FirstWrong(after.device(), after.data(), bytes, 12) == bytes / 4);
}

TEST_CASE("a stream that is held keeps no fetch but its own waiting", "[machine]") {
  Reader reader;
  const size_t bytes = 4 << 20;
  const int to = Gpus() - 1;
  const Shape shape(static_cast<int64_t>(bytes));
  // Copied directly, in parts, by way of stages, from the host.
  for (const char* memory : {"library", "malloc", "segments", "pool", "host"}) {
    INFO(memory);
    auto given = reader.Get(Of(memory, bytes, 0, 12));
    HeldStream held(to), free(to);
    std::vector<Tensor> into;
    constexpr size_t kFetches = 40;  // more than have room in a stream
    for (size_t i = 0; i <= kFetches; ++i) {
      into.push_back(*Tensor::Empty(kUInt8, shape, Device::Cuda(to)));
    }
    held.Hold();
    std::vector<Call<Tensor>> fetches;
    const auto fetch = [&](HeldStream& stream) {
      fetches.push_back(given.Fetch(
          given->tensor(),
          Placement::Into(into[fetches.size()]).InStream(DeviceStream(stream.handle()))));
    };
    for (size_t i = 0; i < kFetches; ++i) fetch(held);
    for (int place = -1; place < Gpus(); ++place) {
      const Device where = place < 0 ? Device::Host() : Device::Cuda(place);
      auto other = given.Fetch(given->tensor(), where).Get();
      INFO(other.status().ToString());
      REQUIRE(other.ok());
      CHECK(FirstWrong(where, other->data(), bytes, 12) == bytes / 4);
    }
    fetch(free);
    REQUIRE(std::move(fetches.back()).Get().ok());
    free.Synchronize();
    CHECK(FirstWrong(Device::Cuda(to), into[kFetches].data(), bytes, 12) == bytes / 4);
    fetches.pop_back();
    // What is given up ends, one way or the other, and the rest goes on.
    fetches.back().Cancel();
    (void)std::move(fetches.back()).Get();
    fetches.pop_back();
    held.Release();
    for (Call<Tensor>& call : fetches) REQUIRE(std::move(call).Get().ok());
    held.Synchronize();
    for (size_t i = 0; i < fetches.size(); ++i) {
      CHECK(FirstWrong(Device::Cuda(to), into[i].data(), bytes, 12) == bytes / 4);
    }
  }
}

}  // namespace
}  // namespace verbena::gpu_test
