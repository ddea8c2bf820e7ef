// Tensors on devices whose memory the CPU may not touch, sent and fetched by calls.
#include <atomic>
#include <cstring>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"
#include "tests/time_bounds.h"
#include "tests/transports.h"

namespace verbena {
namespace {

TEST_CASE("a tensor of a user's device memory is fetched to every place", "[client][device]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(100, 50));
  const std::vector<float> sent = Counting(5000);
  for (const std::string& transport : TestTransports()) {
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

TEST_CASE("columns of a device's tensor are packed by the device that fetches them",
          "[client][device]") {
  Fake(0), Fake(1);
  constexpr size_t kRows = 300, kColumns = 40;
  UserTensor user(Shape(kRows, kColumns));
  const std::vector<float> sent = Counting(kRows * kColumns);
  std::vector<float> columns;
  for (size_t i = 0; i < kRows; ++i) {
    for (size_t j = 3; j < 12; ++j) columns.push_back(sent[i * kColumns + j]);
  }
  const TensorSlice slice = TensorSlice().NextAll().Next(3, 12);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    for (const int index : {0, 1}) {
      auto packed = reply.Fetch(reply->output(), slice, Device::Fake(index)).Get();
      REQUIRE_CODE(packed.status(), kOk);
      CHECK(ValuesOf(Fake(index), *packed) == columns);
    }
    const Placement per_thread =
        Placement(Device::Fake(0)).InStream(DeviceStream(reinterpret_cast<void*>(2)));
    REQUIRE_CODE(reply.Fetch(reply->output(), slice, per_thread).Get().status(), kInvalidArgument);
    // After what is queued on a stream; given up, it ends at once and writes nothing.
    Tensor into = Blank(Shape(kRows, 9));
    memory::FakeStream stream;
    stream.Launch([] {});
    const Placement placement = Placement::Into(into).InStream(DeviceStream(&stream));
    auto given_up = reply.Fetch(reply->output(), slice, placement);
    auto waits = reply.Fetch(reply->output(), slice, placement);
    absl::SleepFor(absl::Milliseconds(5));
    CHECK_FALSE(waits.done());
    given_up.Cancel();
    REQUIRE_CODE(std::move(given_up).Get().status(), kCancelled);
    CHECK(ValuesOf(Fake(1), into) == std::vector<float>(kRows * 9));
    stream.Finish();
    REQUIRE_CODE(std::move(waits).Get().status(), kOk);
    CHECK(ValuesOf(Fake(1), into) == columns);
  }
}

TEST_CASE("the path of a fetch is told, and another can be refused", "[client][device][path]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(5000));
  const auto fetch_by = [](Parcel<test::InferReply>& reply, const Placement& placement) {
    auto call = reply.Fetch(reply->output(), placement);
    while (!call.done()) absl::SleepFor(absl::Microseconds(100));
    const Path path = call.report().path;
    return std::make_pair(std::move(call).Get().status(), path);
  };
  const auto refused = [&](Parcel<test::InferReply>& reply, Placement placement, Path required,
                           const std::string& words) {
    const auto [status, path] = fetch_by(reply, placement.RequirePath(required));
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(status.message()).find(words) != std::string::npos);
  };
  {
    Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
    auto reply = giver.Get();
    CHECK(fetch_by(reply, Device::Fake(0)).second == Path::kSameDevice);
    CHECK(fetch_by(reply, Device::Fake(1)).second == Path::kPeerIpc);
    CHECK(fetch_by(reply, Device::Host()).second == Path::kDeviceCopy);
    CHECK(fetch_by(reply, Placement(Device::Fake(1)).RequirePath(Path::kPeerIpc)).first.ok());
    Tensor into = Blank(Shape(5000));
    refused(reply, Placement::Into(into), Path::kNvlinkIpc,
            "the path of these bytes is peer-ipc, and nvlink-ipc is required");
    CHECK((ValuesOf(Fake(1), into) == std::vector<float>(5000)));
    REQUIRE_CODE(reply.FetchAll().Get(), kOk);
    CHECK(fetch_by(reply, Device::Host()).second == Path::kLocal);
  }
  Giver tcp(user.tensor, ChannelOptions().set_require_transport("tcp"));
  auto reply = tcp.Get();
  for (const Device to : {Device::Fake(1), Device::Host()}) {
    CHECK(fetch_by(reply, to).second == Path::kPinnedStaging);
    CHECK(fetch_by(reply, Placement(to).RequirePath(Path::kPinnedStaging)).first.ok());
    refused(reply, to, Path::kStream, "is pinned-staging, and stream");
  }
  Giver host(FloatTensor({1}), ChannelOptions().set_require_transport("shm"));
  auto mapped = host.Get();
  CHECK(fetch_by(mapped, Device::Host()).second == Path::kMapped);
}

TEST_CASE("a tensor that lies in two mappings of a device is fetched whole and in part",
          "[client][device]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(100, 50));
  Fake(0).Split(user.allocation.base, 3 * 4096);  // in row 58
  const std::vector<float> sent = Counting(5000);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    auto whole = reply.Fetch(reply->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(whole.status(), kOk);
    CHECK(ValuesOf(Fake(1), *whole) == sent);
    auto rows = reply.Fetch(reply->output(), TensorSlice(40, 60), Device::Fake(0)).Get();
    REQUIRE_CODE(rows.status(), kOk);
    CHECK(
        (ValuesOf(Fake(0), *rows) == std::vector<float>(sent.begin() + 2000, sent.begin() + 3000)));
    // Each of them goes as it would alone.
    const auto by = [&](Path path) {
      Placement placement(Device::Fake(1));
      return reply.Fetch(reply->output(), placement.RequirePath(path)).Get().status().code();
    };
    const bool shm = transport == "shm";
    CHECK(by(Path::kPeerIpc) ==
          (shm ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition));
    if (shm) CHECK(by(Path::kPinnedStaging) == absl::StatusCode::kFailedPrecondition);
    // A part that lies in one of them goes as that does.
    Giver part(*user.tensor.Slice(TensorSlice(60, 70)),
               ChannelOptions().set_require_transport(transport));
    auto other = part.Get();
    auto ten = other.Fetch(other->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(ten.status(), kOk);
    CHECK(
        (ValuesOf(Fake(1), *ten) == std::vector<float>(sent.begin() + 3000, sent.begin() + 3500)));
  }
}

TEST_CASE("device memory that no process can be given is staged between processes",
          "[client][device][path]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(100, 50));
  Fake(0).RefuseExports(absl::FailedPreconditionError("it cannot be shared"));
  Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
  auto reply = giver.Get();
  for (const Device to : {Device::Fake(1), Device::Host()}) {
    auto call = reply.Fetch(reply->output(), to);
    REQUIRE(Eventually([&] { return call.done(); }));
    CHECK(call.report().path == Path::kPinnedStaging);
    REQUIRE_CODE(std::move(call).Get().status(), kOk);
    REQUIRE_CODE(
        reply.Fetch(reply->output(), Placement(to).RequirePath(Path::kPeerIpc)).Get().status(),
        kFailedPrecondition);
  }
  Fake(0).RefuseExports(absl::OkStatus());
}

TEST_CASE("host tensors are fetched onto a device", "[client][device]") {
  Fake(1);
  const std::vector<float> sent = Counting(70000);
  for (const std::string& transport : TestTransports()) {
    Giver giver(FloatTensor(sent), ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    auto device = reply.Fetch(reply->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(device.status(), kOk);
    CHECK(ValuesOf(Fake(1), *device) == sent);
  }
}

TEST_CASE("host memory that only its user knows is fetched onto a device", "[client][device]") {
  Fake(1);
  std::vector<float> sent = Counting(300000);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    const Tensor heap = *Tensor::Wrap(
        Buffer::Wrap(sent.data(), sent.size() * sizeof(float), nullptr), kFloat32, Shape(300000));
    Giver giver(heap, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    auto device = reply.Fetch(reply->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(device.status(), kOk);
    CHECK((ValuesOf(Fake(1), *device) == sent));
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

TEST_CASE("a tensor leaves when its producer has ended, and nothing else waits for it",
          "[client][device][order]") {
  Fake(0), Fake(1);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Produced produced;
    Giver giver(produced.after, ChannelOptions().set_require_transport(transport));
    auto late = giver.stub.Infer(InferParcel());
    REQUIRE(Eventually([&] { return giver.calls == 1; }));
    // A call after it is answered before it.
    giver.tensor = FloatTensor({7});
    auto other = giver.Get();
    CHECK(At(*other.Fetch(other->output()).Get(), 0) == 7);
    CHECK_FALSE(late.done());
    produced.stream.Finish();
    auto reply = std::move(late).Get();
    REQUIRE_CODE(reply.status(), kOk);
    auto seen = reply->Fetch((*reply)->output(), Device::Fake(1)).Get();
    REQUIRE_CODE(seen.status(), kOk);
    CHECK((ValuesOf(Fake(1), *seen) == produced.values));
  }
}

TEST_CASE("a request's tensor leaves when its producer has ended", "[client][device][order]") {
  Fake(0);
  Inference inference;
  Produced produced;
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), *produced.after.Slice(TensorSlice(10, 20)));
  auto call = inference.stub.Infer(parcel);
  // Longer than the reactor polls for it.
  absl::SleepFor(absl::Milliseconds(10));
  CHECK_FALSE(call.done());
  produced.stream.Finish();
  auto reply = std::move(call).Get();
  REQUIRE_CODE(reply.status(), kOk);
  CHECK(At(*reply->Fetch((*reply)->output()).Get(), 3) == 2 * produced.values[13]);
  // Once it is written, it leaves at once.
  REQUIRE_CODE(inference.stub.Infer(parcel).Get().status(), kOk);
}

// Of a call whose tensor's producer ends `late`, from then on. Nobody drives the reactor meanwhile.
double MillisecondsToCall(Inference& inference, absl::Duration late) {
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor tensor = *Tensor::Empty(kFloat32, Shape(4), Device::Fake(0));
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), *tensor.After(DeviceStream(&stream)));
  auto call = inference.stub.Infer(parcel);
  absl::SleepFor(late);
  CHECK_FALSE(call.done());
  const absl::Time end = absl::Now();
  stream.Finish();
  CHECK(Eventually([&] { return call.done(); }));
  const absl::Duration took = absl::Now() - end;
  REQUIRE_CODE(std::move(call).Get().status(), kOk);
  return absl::ToDoubleMilliseconds(took);
}

TEST_CASE("a reactor that nobody drives sees the end of a producer", "[client][device][order]") {
  Fake(0);
  Inference inference;
  REQUIRE_CODE(inference.stub.Infer(InferParcel()).Get().status(), kOk);  // makes the link
  // Later than a reactor polls for messages, and later than it polls for devices.
  for (const absl::Duration late : {absl::Microseconds(500), absl::Milliseconds(20)}) {
    CHECK(test_bounds::BestMs("from a producer's end to its call's", test_bounds::kDeviceMs, [&] {
            return MillisecondsToCall(inference, late);
          }) <= test_bounds::kDeviceMs * kSlowdown);
  }
}

TEST_CASE("a call that waits for a producer ends when it is late or cancelled",
          "[client][device][order]") {
  Fake(0);
  Inference inference;
  Produced produced;
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), produced.after);
  REQUIRE_CODE(inference.stub.Infer(parcel, CallOptions().set_timeout(absl::Milliseconds(20)))
                   .Get()
                   .status(),
               kDeadlineExceeded);
  { auto dropped = inference.stub.Infer(parcel); }
  produced.stream.Finish();
  REQUIRE_CODE(inference.stub.Infer(parcel).Get().status(), kOk);
}

TEST_CASE("a call whose tensor will never be written ends with what the device says",
          "[client][device][order]") {
  FakeDevice& broken = Fake(9);
  Inference inference;
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor tensor = *Tensor::Empty(kFloat32, Shape(4), Device::Fake(9));
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), *tensor.After(DeviceStream(&stream)));
  auto call = inference.stub.Infer(parcel);
  broken.Break(absl::AbortedError("a kernel faulted"));
  const absl::Status status = std::move(call).Get().status();
  REQUIRE_CODE(status, kAborted);
  CHECK(tensor.After(DeviceStream(&stream)).status().message() == "a kernel faulted");
  REQUIRE_CODE(FloatTensor({1}).After(DeviceStream(&stream)).status(), kUnimplemented);
  const absl::Status none = Buffer().After(DeviceStream(&stream)).status();
  REQUIRE_CODE(none, kInvalidArgument);
  CHECK(none.message() == "no memory to be written by a stream");
  REQUIRE_CODE(inference.stub.Infer(InferParcel()).Get().status(), kOk);
}

TEST_CASE("bytes arrive in the order of the stream that uses their destination",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(64));
  const std::vector<float> sent = Counting(64);
  for (const std::string& transport : TestTransports()) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    Tensor into = Blank(Shape(64));
    std::vector<float> before, after;
    memory::FakeStream stream;
    // What used the memory before is still at it.
    stream.Launch([&] { before = ValuesOf(Fake(1), into); });
    auto fetch =
        reply.Fetch(reply->output(), Placement::Into(into).InStream(DeviceStream(&stream)));
    const bool early = std::string(transport) == "shm";
    if (early) {
      REQUIRE(Eventually([&] { return fetch.done(); }));
      CHECK(fetch.report().path == Path::kPeerIpc);
    } else {
      absl::SleepFor(absl::Milliseconds(5));
      CHECK_FALSE(fetch.done());
    }
    CHECK((ValuesOf(Fake(1), into) == std::vector<float>(64)));
    if (!early) stream.Finish();
    REQUIRE_CODE(std::move(fetch).Get().status(), kOk);
    if (early) stream.Finish();
    stream.Launch([&] { after = ValuesOf(Fake(1), into); });
    stream.Finish();
    REQUIRE(Eventually([&] { return stream.pending() == 0; }));
    CHECK((before == std::vector<float>(64)));
    CHECK((after == sent));
  }
}

TEST_CASE("a fetch in a stream's order holds what it reads and writes until it is over",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(64));
  memory::FakeStream stream;
  stream.Launch([] {});
  std::vector<float> seen;
  {
    // The server fetches, returns at once, and its reply waits for the copy.
    test::Inference::Mock mock;
    Tensor into = Blank(Shape(64));
    std::atomic<bool> returned{false};
    mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>& request,
                        Parcel<test::InferReply>&) -> Task<absl::Status> {
      auto fetched = co_await request.Fetch(request->input(),
                                            Placement::Into(into).InStream(DeviceStream(&stream)));
      returned = fetched.ok();
      co_return fetched.status();
    };
    testing::Loopback loop(mock, ChannelOptions().set_require_transport("shm"));
    test::Inference::Stub stub(loop.channel());
    Parcel<test::InferRequest> parcel;
    parcel.Attach(*parcel->mutable_input(), user.tensor);
    auto call = stub.Infer(parcel);
    REQUIRE(Eventually([&] { return returned.load(); }));
    absl::SleepFor(
        absl::Milliseconds(30));  // longer than a lane is left to READs that were stopped
    CHECK_FALSE(call.done());
    stream.Launch([&] { seen = ValuesOf(Fake(1), into); });
    stream.Finish(2);
    REQUIRE_CODE(std::move(call).Get().status(), kOk);
  }
  CHECK((seen == Counting(64)));
}

TEST_CASE("a result that its user drops keeps its memory until the copies in the stream are over",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(1, 64));
  Giver shm(user.tensor, ChannelOptions().set_require_transport("shm"));
  auto reply = shm.Get();
  const size_t bytes = user.tensor.bytes();
  const memory::Extent extent = *Fake(1).Allocate(bytes);
  memory::FakeStream stream;
  for (const bool scattered : {false, true}) {
    INFO((scattered ? "rows" : "whole"));
    std::atomic<bool> released{false};
    stream.Launch([] {});
    {
      Tensor into =
          *Tensor::Wrap(Buffer::Wrap(
                            extent.base, bytes, [&] { released = true; }, Device::Fake(1)),
                        kFloat32, Shape(1, 64));
      Placement placement = scattered ? Placement::IntoRows(into, {0}) : Placement::Into(into);
      auto fetch =
          reply.Fetch(reply->output(), std::move(placement).InStream(DeviceStream(&stream)));
      REQUIRE_CODE(std::move(fetch).Get().status(), kOk);
    }
    absl::SleepFor(absl::Milliseconds(10));
    CHECK_FALSE(released.load());
    stream.Finish();
    REQUIRE(Eventually([&] { return released.load(); }));
  }
  Fake(1).Free(extent);
}

TEST_CASE("fetches that go by stages do not wait for another's stream", "[client][device][order]") {
  Fake(0), Fake(1), Fake(2);
  constexpr int64_t kCount = 3 << 20;  // more than all stages of a link
  UserTensor user{Shape(kCount)};
  memory::FakeStream stream;
  for (const char* transport : {"tcp"}) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    const auto& output = reply->output();
    Tensor late = Blank(Shape(kCount));
    bool before = false;
    stream.Launch([&] { before = ValuesOf(Fake(1), late)[5] == 0; });
    auto waits = reply.Fetch(output, Placement::Into(late).InStream(DeviceStream(&stream)));
    auto cancelled = std::make_optional(
        reply.Fetch(output, Placement::Into(late).InStream(DeviceStream(&stream))));
    for (int i = 0; i < 2; ++i) {
      auto other = reply.Fetch(output, Device::Fake(2));
      REQUIRE(Eventually([&] { return other.done(); }));
      auto got = std::move(other).Get();
      REQUIRE_CODE(got.status(), kOk);
      CHECK(ValuesOf(Fake(2), *got) == Counting(kCount));
      REQUIRE_CODE(reply.Fetch(output, Device::Host()).Get().status(), kOk);
      cancelled.reset();
    }
    CHECK_FALSE(waits.done());
    stream.Finish();
    REQUIRE_CODE(std::move(waits).Get().status(), kOk);
    CHECK(before);
    CHECK(ValuesOf(Fake(1), late) == Counting(kCount));
  }
}

TEST_CASE("a fetch whose stream's device fails before it is ready ends with what that says",
          "[client][device][order]") {
  FakeDevice& broken = Fake(10);
  UserTensor user(Shape(64));
  Giver giver(user.tensor, ChannelOptions().set_require_transport("tcp"));
  auto reply = giver.Get();
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor into = *Tensor::Empty(kFloat32, Shape(64), Device::Fake(10));
  auto fetch = reply.Fetch(reply->output(), Placement::Into(into).InStream(DeviceStream(&stream)));
  absl::SleepFor(absl::Milliseconds(5));
  CHECK_FALSE(fetch.done());
  broken.Break(absl::AbortedError("the device fell off the bus"));
  const absl::Status status = std::move(fetch).Get().status();
  CHECK(status.code() == absl::StatusCode::kAborted);
  CHECK(absl::StrContains(status.message(), "fell off the bus"));
  broken.Break(absl::OkStatus());
}

TEST_CASE("a server ends while a client's stream stands still, and what that reads stays allocated",
          "[client][device][order]") {
  Fake(1);
  WatchedTensor watched(64);
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor into = Blank(Shape(64));
  {
    Giver shm(watched.Take(), ChannelOptions().set_require_transport("shm"));
    auto reply = shm.Get();
    auto fetch =
        reply.Fetch(reply->output(), Placement::Into(into).InStream(DeviceStream(&stream)));
    REQUIRE_CODE(std::move(fetch).Get().status(), kOk);
    // Nobody else has it any more.
    shm.tensor = Tensor();
    shm.loop.server().Shutdown();
    // Its link has ended by force, and the reply's lease with it.
    CHECK_FALSE(watched.released.load());
    CHECK(ValuesOf(Fake(1), into) == std::vector<float>(64));
    stream.Finish();
    REQUIRE(Eventually([&] { return watched.released.load(); }));
  }
  CHECK(ValuesOf(Fake(1), into) == watched.sent);
}

TEST_CASE("over verbs, memory that the NIC does not reach goes by way of the host's",
          "[client][device][reach]") {
  if (TestTransports() != std::vector<std::string>{"verbs"}) {
    WARN("skipped: for machines with an RDMA device (tests/run --verbs)");
    return;
  }
  Fake(0), Fake(1);
  const ChannelOptions verbs = ChannelOptions().set_require_transport("verbs");
  const auto path_of = [](Parcel<test::InferReply>& reply, const Placement& placement) {
    auto call = reply.Fetch(reply->output(), placement);
    while (!call.done()) absl::SleepFor(absl::Microseconds(100));
    const Path path = call.report().path;
    REQUIRE_CODE(std::move(call).Get().status(), kOk);
    return path;
  };
  UserTensor user(Shape(5000));
  Giver device(user.tensor, verbs);
  auto reply = device.Get();
  CHECK(path_of(reply, Device::Fake(1)) == Path::kPinnedStaging);
  CHECK(path_of(reply, Device::Host()) == Path::kPinnedStaging);
  const auto refused =
      reply.Fetch(reply->output(), Placement(Device::Fake(1)).RequirePath(Path::kGdrRead)).Get();
  REQUIRE_CODE(refused.status(), kFailedPrecondition);
  CHECK(refused.status().message() ==
        "the path of these bytes is pinned-staging, and gdr-read is required");
  Giver host(FloatTensor({1, 2}), verbs);
  auto floats = host.Get();
  CHECK(path_of(floats, Device::Fake(1)) == Path::kPinnedStaging);
  CHECK(path_of(floats, Device::Host()) == Path::kRdmaRead);
}

}  // namespace
}  // namespace verbena
