// Tensors on devices whose memory the CPU may not touch, sent and fetched by calls.
#include <cstring>

#include "rpc/memory/fake_device.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

using memory::FakeDevice;

FakeDevice& Fake(int index) { return FakeDevice::Install(index); }

std::vector<float> Counting(size_t count) {
  std::vector<float> values(count);
  for (size_t i = 0; i < count; ++i) values[i] = static_cast<float>(i) + 0.5f;
  return values;
}
std::vector<float> ValuesOf(FakeDevice& fake, const Tensor& tensor) {
  std::vector<float> values(tensor.bytes() / sizeof(float));
  fake.Read(values.data(), tensor.data(), tensor.bytes());
  return values;
}

// A tensor of fake:0 that lies within an allocation of a user's.
struct UserTensor {
  explicit UserTensor(const Shape& shape) {
    const size_t bytes = static_cast<size_t>(shape.elements()) * sizeof(float);
    allocation = *Fake(0).Allocate(bytes + 1024);
    const std::vector<float> values = Counting(bytes / sizeof(float));
    Fake(0).Write(allocation.base + 512, values.data(), bytes);
    tensor = *Tensor::Wrap(Buffer::Wrap(allocation.base + 512, bytes, nullptr, Device::Fake(0)),
                           kFloat32, shape);
  }
  ~UserTensor() { Fake(0).Free(allocation); }
  memory::Extent allocation;
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
  test::Inference::Mock mock;
  testing::Loopback loop;
  test::Inference::Stub stub{loop.channel()};
};

TEST_CASE("a tensor of a user's device memory is fetched to every place", "[client][device]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(100, 50));
  const std::vector<float> sent = Counting(5000);
  for (const char* transport : {"shm", "tcp"}) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    const auto& output = reply->output();
    auto host = reply.Fetch(output).Get();
    REQUIRE_CODE(host.status(), kOk);
    CHECK(std::equal(sent.begin(), sent.end(), host->Values<float>()->begin()));
    for (const int index : {0, 1}) {
      auto device = reply.Fetch(output, Device::Fake(index)).Get();
      REQUIRE_CODE(device.status(), kOk);
      CHECK(device->device() == Device::Fake(index));
      CHECK(ValuesOf(Fake(index), *device) == sent);
    }
    // Rows, into memory of the caller's on another device.
    Tensor rows = *Tensor::Empty(kFloat32, Shape(3, 50), Device::Fake(1));
    auto slice = reply.Fetch(output, TensorSlice(7, 10), Placement::Into(rows)).Get();
    REQUIRE_CODE(slice.status(), kOk);
    CHECK(ValuesOf(Fake(1), rows) == std::vector<float>(sent.begin() + 350, sent.begin() + 500));
  }
}

TEST_CASE("host tensors are fetched onto a device", "[client][device]") {
  Fake(1);
  const std::vector<float> sent = Counting(70000);
  for (const char* transport : {"shm", "tcp"}) {
    Giver giver(FloatTensor(sent), ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    auto device = reply.Fetch(reply->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(device.status(), kOk);
    CHECK(ValuesOf(Fake(1), *device) == sent);
  }
}

TEST_CASE("device memory that is not there is refused, with its address", "[client][device]") {
  Fake(0);
  std::byte host[64];
  Inference inference;
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(),
                *Tensor::Wrap(Buffer::Wrap(host, 64, nullptr, Device::Fake(0)), kInt8, Shape(64)));
  const absl::Status status = inference.stub.Infer(parcel).Get().status();
  REQUIRE_CODE(status, kNotFound);
  CHECK(status.message().find("test.InferRequest.input") != absl::string_view::npos);
  CHECK(status.message().find("are not of fake:0") != absl::string_view::npos);
}

}  // namespace
}  // namespace verbena
