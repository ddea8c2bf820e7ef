#pragma once
// Tensors on fake devices, and a service that gives them.
#include <algorithm>
#include <atomic>
#include <deque>
#include <utility>
#include <vector>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/fixture.h"

namespace verbena {

using memory::FakeDevice;

inline FakeDevice& Fake(int index) { return FakeDevice::Install(index); }

inline std::vector<float> Counting(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) + 0.5f;
  return values;
}
inline std::vector<float> ValuesOf(FakeDevice& fake, const Tensor& tensor) {
  std::vector<float> values(tensor.bytes() / sizeof(float));
  fake.Read(values.data(), tensor.data(), tensor.bytes());
  return values;
}

// Of a tensor on fake:1 once what is queued on the stream now has ended: copies too, of which
// nobody else hears, and beside which nobody may look.
inline std::vector<float> ValuesAfter(memory::FakeStream& stream, const Tensor& tensor) {
  const memory::FakeStream::Flag end = stream.Record();
  CHECK(Eventually([&] { return end->load(); }));
  return ValuesOf(Fake(1), tensor);
}

// Zeros on fake:1, whose memory may have been somebody else's.
inline Tensor Blank(const Shape& shape) {
  Tensor tensor = *Tensor::Empty(kFloat32, shape, Device::Fake(1));
  const std::vector<float> zeros(static_cast<size_t>(shape.elements()));
  Fake(1).Write(tensor.mutable_data(), zeros.data(), tensor.bytes());
  return tensor;
}

// One that outlives whoever copies in its order.
inline memory::FakeStream& NewStream() {
  static auto* const all = new std::deque<memory::FakeStream>;
  return all->emplace_back();
}

// A tensor of a fake device that lies within an allocation of a user's.
struct UserTensor {
  explicit UserTensor(const Shape& shape, int index = 0) : fake(Fake(index)) {
    const size_t bytes = static_cast<size_t>(shape.elements()) * sizeof(float);
    allocation = *fake.Allocate(bytes + 1024);
    const std::vector<float> values = Counting(bytes / sizeof(float));
    fake.Write(allocation.base + 512, values.data(), bytes);
    tensor = *Tensor::Wrap(Buffer::Wrap(allocation.base + 512, bytes, nullptr, Device::Fake(index)),
                           kFloat32, shape);
  }
  ~UserTensor() { fake.Free(allocation); }
  FakeDevice& fake;
  memory::Extent allocation;
  Tensor tensor;
};

// A tensor of a user's memory, and whether the library has let go of that.
struct WatchedTensor {
  explicit WatchedTensor(int64_t count, int index = 0) : fake(Fake(index)), sent(Counting(count)) {
    const size_t bytes = sent.size() * sizeof(float);
    extent = *fake.Allocate(bytes);
    fake.Write(extent.base, sent.data(), bytes);
    tensor =
        *Tensor::Wrap(Buffer::Wrap(
                          extent.base, bytes, [this] { released = true; }, Device::Fake(index)),
                      kFloat32, Shape(count));
  }
  ~WatchedTensor() { fake.Free(extent); }
  // Once: nobody else has it then.
  Tensor Take() { return std::exchange(tensor, Tensor()); }
  FakeDevice& fake;
  const std::vector<float> sent;
  memory::Extent extent;
  std::atomic<bool> released{false};
  Tensor tensor;
};

// Replies with the tensor that it was given.
struct Giver {
  explicit Giver(Tensor given, const ChannelOptions& options = {})
      : tensor(std::move(given)),
        loop((
                 mock.on_Infer = [this](ServerContext&, const Parcel<test::InferRequest>&,
                                        Parcel<test::InferReply>& reply) -> Task<absl::Status> {
                   reply.Attach(*reply->mutable_output(), tensor);
                   ++calls;
                   co_return absl::OkStatus();
                 },
                 mock),
             options) {}
  Parcel<test::InferReply> Get() {
    auto reply = stub.Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    return *std::move(reply);
  }
  Tensor tensor;
  std::atomic<int> calls{0};
  test::Inference::Mock mock;
  testing::Loopback loop;
  test::Inference::Stub stub{loop.channel()};
};

// A tensor of fake:0 whose producer is queued on a stream and has not run.
struct Produced {
  explicit Produced(size_t count = 5000) : values(Counting(count)) {
    tensor = *Tensor::Empty(kFloat32, Shape(static_cast<int64_t>(count)), Device::Fake(0));
    stream.Launch([this] { Fake(0).Write(tensor.mutable_data(), values.data(), tensor.bytes()); });
    auto later = tensor.After(DeviceStream(&stream));
    REQUIRE_CODE(later.status(), kOk);
    after = *std::move(later);
  }
  memory::FakeStream stream;
  std::vector<float> values;
  Tensor tensor, after;
};

}  // namespace verbena
