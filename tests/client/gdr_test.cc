// Calls over verbs whose tensors a NIC reads and writes in the memory of devices by itself: over
// soft-RoCE, with a made-up dma-buf.
#include <string>
#include <vector>

#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/memory/fake_device.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/fixture.h"
#include "tests/contract/fake_dmabuf.h"
#include "tests/transports.h"

namespace verbena {
namespace {

using fabric::verbs::FakeDmaBuf;
using memory::FakeDevice;

constexpr int kFrom = 40, kTo = 41;
constexpr int64_t kCount = 500'000;  // several READs

std::vector<float> Counting() {
  std::vector<float> values(kCount);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i) + 0.5f;
  return values;
}

std::vector<float> ValuesOf(const Tensor& tensor) {
  std::vector<float> values(tensor.bytes() / sizeof(float));
  FakeDevice::Install(tensor.device().index()).Read(values.data(), tensor.data(), tensor.bytes());
  return values;
}

TEST_CASE("a tensor goes from device to device by a NIC alone", "[client][gdr]") {
  if (TestTransports() != std::vector<std::string>{"verbs"}) {
    WARN("skipped: for machines with an RDMA device (tests/run --verbs)");
    return;
  }
  FakeDmaBuf nic;
  FakeDevice& from = FakeDevice::Install(kFrom);
  FakeDevice& to = FakeDevice::Install(kTo);
  const std::vector<float> sent = Counting();
  memory::FakeStream producer;
  Tensor tensor = *Tensor::Empty(kFloat32, Shape(kCount), Device::Fake(kFrom));
  producer.Launch([&] { from.Write(tensor.mutable_data(), sent.data(), tensor.bytes()); });
  test::Inference::Mock mock;
  mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>&,
                      Parcel<test::InferReply>& reply) -> Task<absl::Status> {
    reply.Attach(*reply->mutable_output(), *tensor.After(DeviceStream(&producer)));
    co_return absl::OkStatus();
  };
  testing::Loopback loop(mock, ChannelOptions().set_require_transport("verbs"));
  test::Inference::Stub stub(loop.channel());
  auto call = stub.Infer(InferParcel());
  absl::SleepFor(absl::Milliseconds(20));
  CHECK_FALSE(call.done());
  producer.Finish();
  auto reply = std::move(call).Get();
  REQUIRE_CODE(reply.status(), kOk);
  const auto& output = (*reply)->output();
  const auto by_nic = [](Placement placement) {
    return std::move(placement).RequirePath(Path::kGdrRead);
  };
  auto device = reply->Fetch(output, by_nic(Device::Fake(kTo))).Get();
  REQUIRE_CODE(device.status(), kOk);
  CHECK((ValuesOf(*device) == sent));
  auto host = reply->Fetch(output, by_nic(Device::Host())).Get();
  REQUIRE_CODE(host.status(), kOk);
  CHECK(std::equal(sent.begin(), sent.end(), host->Values<float>()->begin()));
  // Into memory of the caller's, in the order of a stream of its own.
  Tensor into = *Tensor::Empty(kFloat32, Shape(kCount), Device::Fake(kTo));
  memory::FakeStream consumer;
  consumer.Launch([&] {  // uses the memory until then
    to.Write(into.mutable_data(), std::vector<float>(kCount).data(), into.bytes());
  });
  auto in_stream =
      reply->Fetch(output, by_nic(Placement::Into(into).InStream(DeviceStream(&consumer))));
  absl::SleepFor(absl::Milliseconds(20));
  CHECK_FALSE(in_stream.done());
  consumer.Finish();
  REQUIRE_CODE(std::move(in_stream).Get().status(), kOk);
  CHECK((ValuesOf(into) == sent));
  const auto staged =
      reply->Fetch(output, Placement(Device::Fake(kTo)).RequirePath(Path::kPinnedStaging)).Get();
  REQUIRE_CODE(staged.status(), kFailedPrecondition);
  CHECK(staged.status().message() ==
        "the path of these bytes is gdr-read, and pinned-staging is required");
  // The lease takes its registration along; what is READ into is kept, as its memory is.
  CHECK(fabric::verbs::DeviceBytesOf(from).registered >= tensor.bytes());
  REQUIRE_CODE(reply->FetchAll().Get(), kOk);
  CHECK(Eventually([&] { return fabric::verbs::DeviceBytesOf(from).registered == 0; }));
  CHECK(fabric::verbs::DeviceBytesOf(to).registered >= tensor.bytes());
  CHECK(FakeDmaBuf::bad_offset == 0);
  CHECK(from.flushes() + to.flushes() == 0);
}

TEST_CASE("each mapping of a tensor's memory is read by a NIC", "[client][gdr]") {
  if (TestTransports() != std::vector<std::string>{"verbs"}) {
    WARN("skipped: for machines with an RDMA device (tests/run --verbs)");
    return;
  }
  FakeDmaBuf nic;
  FakeDevice& from = FakeDevice::Install(kFrom);
  FakeDevice::Install(kTo);
  const std::vector<float> sent = Counting();
  const size_t bytes = sent.size() * sizeof(float);
  const memory::Extent allocation = *from.Allocate(bytes + 1024);
  from.Write(allocation.base + 512, sent.data(), bytes);
  from.Split(allocation.base, 512 + 700'000);
  {
    test::Inference::Mock mock;
    mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>&,
                        Parcel<test::InferReply>& reply) -> Task<absl::Status> {
      Buffer user = Buffer::Wrap(allocation.base + 512, bytes, nullptr, Device::Fake(kFrom));
      reply.Attach(*reply->mutable_output(),
                   *Tensor::Wrap(std::move(user), kFloat32, Shape(kCount)));
      co_return absl::OkStatus();
    };
    testing::Loopback loop(mock, ChannelOptions().set_require_transport("verbs"));
    test::Inference::Stub stub(loop.channel());
    auto reply = stub.Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    CHECK(fabric::verbs::DeviceBytesOf(from).registered >= bytes);
    auto fetched =
        reply->Fetch((*reply)->output(), Placement(Device::Fake(kTo)).RequirePath(Path::kGdrRead))
            .Get();
    REQUIRE_CODE(fetched.status(), kOk);
    CHECK((ValuesOf(*fetched) == sent));
    CHECK(FakeDmaBuf::bad_offset == 0);
    REQUIRE_CODE(reply->FetchAll().Get(), kOk);
    CHECK(Eventually([&] { return fabric::verbs::DeviceBytesOf(from).registered == 0; }));
  }
  from.Free(allocation);
}

}  // namespace
}  // namespace verbena
