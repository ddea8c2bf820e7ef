// Fetches of what is in this process already, where a device has to copy.
#include <algorithm>
#include <utility>
#include <vector>

#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

TEST_CASE("what is here already is copied between the host and devices", "[client][device]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(100, 5));
  const std::vector<float> sent = Counting(500);
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), user.tensor);
  auto device = parcel.Fetch(parcel->output(), Device::Fake(1)).Get();
  REQUIRE_CODE(device.status(), kOk);
  CHECK((ValuesOf(Fake(1), *device) == sent));
  auto rows = parcel.Fetch(parcel->output(), TensorSlice(3, 5), Device::Host()).Get();
  REQUIRE_CODE(rows.status(), kOk);
  CHECK(std::equal(sent.begin() + 15, sent.begin() + 25, rows->Values<float>()->begin()));
  // Strided: columns 1 and 2 of 5.
  std::vector<float> columns;
  for (size_t i = 0; i < 100; ++i)
    columns.insert(columns.end(), {sent[5 * i + 1], sent[5 * i + 2]});
  const TensorSlice slice = TensorSlice().NextAll().Next(1, 3);
  Parcel<test::InferReply> of_host;
  of_host.Attach(*of_host->mutable_output(),
                 *Tensor::CopyBytes(sent.data(), 2000, kFloat32, Shape(100, 5)));
  for (const Parcel<test::InferReply>* from : {&parcel, &of_host}) {
    auto host = from->Fetch((*from)->output(), slice, Device::Host()).Get();
    REQUIRE_CODE(host.status(), kOk);
    CHECK(std::equal(columns.begin(), columns.end(), host->Values<float>()->begin()));
    auto on_device = from->Fetch((*from)->output(), slice, Device::Fake(1)).Get();
    REQUIRE_CODE(on_device.status(), kOk);
    CHECK((ValuesOf(Fake(1), *on_device) == columns));
  }
  v1::Buffer descriptor;
  parcel.Attach(descriptor, FloatTensor(sent).buffer());
  auto buffer = parcel.Fetch(descriptor, Device::Fake(0)).Get();
  REQUIRE_CODE(buffer.status(), kOk);
  std::vector<float> seen(500);
  Fake(0).Read(seen.data(), buffer->data(), 2000);
  CHECK(seen == sent);
}

TEST_CASE("what is here is copied after what writes it", "[client][device][order]") {
  Fake(0), Fake(1);
  Produced produced;
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), produced.after);
  std::vector<Call<Tensor>> calls;
  for (const Device to : {Device::Host(), Device::Fake(1)}) {
    calls.push_back(parcel.Fetch(parcel->output(), to));
  }
  auto given_up = parcel.Fetch(parcel->output(), Device::Host());
  // Whole and where it is: the same memory, which still is not to be read before its producer.
  auto same = parcel.Fetch(parcel->output(), Device::Fake(0)).Get();
  REQUIRE_CODE(same.status(), kOk);
  CHECK(same->data() == produced.tensor.data());
  absl::SleepFor(absl::Milliseconds(5));
  for (const Call<Tensor>& call : calls) CHECK_FALSE(call.done());
  // Another stream keeps nobody else waiting, and one that waits can be given up.
  auto other = parcel.Fetch(parcel->output(), TensorSlice(0, 0), Device::Host());
  given_up.Cancel();
  REQUIRE_CODE(std::move(given_up).Get().status(), kCancelled);
  produced.stream.Finish();
  auto host = std::move(calls[0]).Get();
  auto device = std::move(calls[1]).Get();
  REQUIRE_CODE(host.status(), kOk);
  REQUIRE_CODE(device.status(), kOk);
  CHECK(std::equal(produced.values.begin(), produced.values.end(), host->Values<float>()->begin()));
  CHECK((ValuesOf(Fake(1), *device) == produced.values));
  REQUIRE_CODE(std::move(other).Get().status(), kOk);
}

TEST_CASE("what is here is copied after what its destination's stream does with that",
          "[client][device][order]") {
  Fake(0), Fake(1);
  const std::vector<float> sent = Counting(64);
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), FloatTensor(sent));
  Tensor into = *Tensor::Empty(kFloat32, Shape(64), Device::Fake(1));
  const std::vector<float> before(64, 7);
  Fake(1).Write(into.mutable_data(), before.data(), into.bytes());
  std::vector<float> read(64);
  memory::FakeStream reader;
  reader.Launch([&] { Fake(1).Read(read.data(), into.data(), into.bytes()); });
  auto call = parcel.Fetch(parcel->output(), Placement::Into(into).InStream(DeviceStream(&reader)));
  // One that waits for nothing passes it by.
  auto passes = parcel.Fetch(parcel->output(), Device::Fake(0)).Get();
  REQUIRE_CODE(passes.status(), kOk);
  CHECK_FALSE(call.done());
  reader.Finish();
  REQUIRE_CODE(std::move(call).Get().status(), kOk);
  CHECK(read == before);
  CHECK((ValuesOf(Fake(1), into) == sent));
}

TEST_CASE("what is here is not copied in the order of a stream that each thread has",
          "[client][device][order]") {
  Fake(0);
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), FloatTensor({1, 2}));
  const Placement placement =
      Placement(Device::Fake(0)).InStream(DeviceStream(reinterpret_cast<void*>(2)));
  REQUIRE_CODE(parcel.Fetch(parcel->output(), placement).Get().status(), kInvalidArgument);
}

TEST_CASE("a copy of what is here ends with what its device says", "[client][device][fault]") {
  FakeDevice& broken = Fake(11);
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor tensor = *Tensor::Empty(kFloat32, Shape(4), Device::Fake(11));
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), *tensor.After(DeviceStream(&stream)));
  auto call = parcel.Fetch(parcel->output(), Device::Host());
  broken.Break(absl::AbortedError("a kernel faulted"));
  REQUIRE_CODE(std::move(call).Get().status(), kAborted);
  REQUIRE_CODE(parcel.Fetch(parcel->output(), TensorSlice(0, 1), Device::Host()).Get().status(),
               kAborted);
}

TEST_CASE("what is here comes by no other path", "[client][device][path]") {
  Fake(0);
  Parcel<test::InferReply> parcel;
  parcel.Attach(*parcel->mutable_output(), FloatTensor({1, 2}));
  const auto status = [&](Placement placement, Path path) {
    return parcel.Fetch(parcel->output(), placement.RequirePath(path)).Get().status();
  };
  for (const Device to : {Device::Host(), Device::Fake(0)}) {
    const absl::Status refused = status(to, Path::kNvlinkIpc);
    REQUIRE_CODE(refused, kFailedPrecondition);
    CHECK(refused.message() ==
          "these bytes are in this process already, and nvlink-ipc is required");
    REQUIRE_CODE(status(to, Path::kLocal), kOk);
  }
}

}  // namespace
}  // namespace verbena
