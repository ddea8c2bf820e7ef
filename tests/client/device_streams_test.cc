// Fetches in the order of streams that stand still: what ends all the same, and what does not wait
// for them.
#include <atomic>

#include "absl/cleanup/cleanup.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

TEST_CASE("a cancelled call ends though its reader's stream stands still, and its memory is kept",
          "[client][device][order]") {
  Fake(0), Fake(1);
  const size_t bytes = 64 * sizeof(float);
  const memory::Extent extent = *Fake(0).Allocate(bytes);
  const std::vector<float> sent = Counting(64);
  Fake(0).Write(extent.base, sent.data(), bytes);
  std::atomic<bool> released{false}, fetched{false};
  memory::FakeStream stream;
  stream.Launch([] {});
  Tensor into = Blank(64);
  {
    test::Inference::Mock mock;
    mock.on_Infer = [&](ServerContext&, const Parcel<test::InferRequest>& request,
                        Parcel<test::InferReply>&) -> Task<absl::Status> {
      if (fetched) co_return absl::OkStatus();
      auto got = co_await request.Fetch(request->input(),
                                        Placement::Into(into).InStream(DeviceStream(&stream)));
      fetched = got.ok();
      co_return got.status();
    };
    testing::Loopback loop(mock, ChannelOptions().set_require_transport("shm"));
    test::Inference::Stub stub(loop.channel());
    const absl::Cleanup finish = [&] { stream.Finish(); };
    auto call = [&] {
      Parcel<test::InferRequest> parcel;
      Buffer buffer = Buffer::Wrap(
          extent.base, bytes, [&] { released = true; }, Device::Fake(0));
      parcel.Attach(*parcel->mutable_input(), *Tensor::Wrap(buffer, kFloat32, Shape(64)));
      return stub.Infer(parcel);
    }();
    REQUIRE(Eventually([&] { return fetched.load(); }));
    call.Cancel();
    REQUIRE(Eventually([&] { return call.done(); }));
    REQUIRE_CODE(std::move(call).Get().status(), kCancelled);
    // The link and its other calls go on.
    REQUIRE_CODE(stub.Infer(InferParcel()).Get().status(), kOk);
    CHECK_FALSE(released.load());
    CHECK(ValuesOf(Fake(1), into) == std::vector<float>(64));
    stream.Finish();
    REQUIRE(Eventually([&] { return released.load(); }));
    CHECK(ValuesOf(Fake(1), into) == sent);
  }
  Fake(0).Free(extent);
}

}  // namespace
}  // namespace verbena
