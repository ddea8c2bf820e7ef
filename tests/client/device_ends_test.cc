// Links that end while streams stand still in which copies from them stand: what goes on meanwhile.
#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

ptrdiff_t CountDone(const std::vector<Call<Tensor>>& calls) {
  return std::count_if(calls.begin(), calls.end(),
                       [](const Call<Tensor>& call) { return call.done(); });
}

// A server that gives a tensor and is shut down while a stream of its client's stands still, and
// another at the same address.
struct Ending {
  explicit Ending(int64_t count)
      : user(Shape(count)), into(Blank(Shape(count))), other(Blank(Shape(count))) {
    mock.on_Infer = [this](ServerContext&, const Parcel<test::InferRequest>&,
                           Parcel<test::InferReply>& reply) -> Task<absl::Status> {
      reply.Attach(*reply->mutable_output(), user.tensor);
      co_return absl::OkStatus();
    };
    server = Start("127.0.0.1:0");
    channel = Channel::Create(server->address(),
                              ChannelOptions().set_require_transport("shm").set_backoff(
                                  absl::Milliseconds(1), absl::Milliseconds(10)));
    stub.emplace(channel);
    stream.Launch([] {});
  }
  ~Ending() { stream.Finish(1000); }
  std::unique_ptr<Server> Start(const std::string& address) {
    auto started = Server::Start(ServerOptions().set_listen(address).add_service(mock));
    REQUIRE(started.ok());
    return *std::move(started);
  }
  Parcel<test::InferReply> Get() {
    auto reply = stub->Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    return *std::move(reply);
  }
  Call<Tensor> Fetch(Parcel<test::InferReply>& reply, Tensor& to) {
    return reply.Fetch(reply->output(), Placement::Into(to).InStream(DeviceStream(&stream)));
  }
  void Restart() {
    const std::string address = server->address();
    server->Shutdown();
    server = Start(address);
  }

  UserTensor user;
  Tensor into, other;
  memory::FakeStream& stream = NewStream();
  test::Inference::Mock mock;
  std::unique_ptr<Server> server;
  std::shared_ptr<Channel> channel;
  std::optional<test::Inference::Stub> stub;
};

TEST_CASE("a channel connects anew while a stream stands still that copies from its old server",
          "[client][device][order]") {
  Fake(0), Fake(1);
  Ending e(64);
  auto reply = e.Get();
  REQUIRE_CODE(e.Fetch(reply, e.into).Get().status(), kOk);
  e.Restart();
  absl::Status status;
  const bool connects = Eventually([&] {
    auto call = e.stub->Infer(InferParcel());
    for (int i = 0; i < 1000 && !call.done(); ++i) absl::SleepFor(absl::Milliseconds(1));
    if (!call.done()) return false;
    status = std::move(call).Get().status();
    return status.ok();
  });
  INFO(status.ToString());
  CHECK(connects);
  CHECK(ValuesOf(Fake(1), e.into) == std::vector<float>(64));
  e.stream.Finish();
  CHECK(ValuesAfter(e.stream, e.into) == Counting(64));
}

TEST_CASE("fetches end with their link though a part of them stands in a stream that does not move",
          "[client][device][order]") {
  Fake(0), Fake(1);
  constexpr int64_t kCount = 5000;
  constexpr size_t kFetches = 21;
  Ending e(kCount);
  Fake(0).Split(e.user.allocation.base, 3 * 4096);
  auto reply = e.Get();
  // An odd one, so that of the last pair of READs that stand there one has no room.
  std::vector<Tensor> into;
  std::vector<Call<Tensor>> fetches;
  for (size_t i = 0; i < kFetches; ++i) {
    into.push_back(Blank(Shape(i == 0 ? 8 : kCount)));
    const TensorSlice slice = i == 0 ? TensorSlice(0, 8) : TensorSlice();
    fetches.push_back(reply.Fetch(reply->output(), slice,
                                  Placement::Into(into.back()).InStream(DeviceStream(&e.stream))));
    if (i == 0) REQUIRE(Eventually([&] { return fetches[0].done(); }));
  }
  {
    auto other = reply.Fetch(reply->output(), Device::Fake(1));
    REQUIRE(Eventually([&] { return other.done(); }));
  }
  const auto done = [&] { return CountDone(fetches); };
  CHECK(done() < static_cast<ptrdiff_t>(kFetches));
  e.server->Shutdown();
  REQUIRE(Eventually([&] { return done() == kFetches; }));
  e.stream.Finish();
  for (size_t i = 0; i < kFetches; ++i) {
    const absl::Status status = std::move(fetches[i]).Get().status();
    CHECK((status.ok() || absl::IsUnavailable(status)));
    if (!status.ok() || i == 0) continue;
    CHECK(ValuesAfter(e.stream, into[i]) == Counting(kCount));
  }
}

TEST_CASE("however many fetches stand in streams, others come", "[client][device][order]") {
  // As many as the engines of two devices take: READs of which each reactor posts so many at once.
  constexpr size_t kLinks = 32, kOfLink = 32, kStreams = 16;
  Fake(0), Fake(1), Fake(2);
  UserTensor user(Shape(8));
  Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
  static auto* const streams = new std::vector<memory::FakeStream>(kStreams);
  for (memory::FakeStream& stream : *streams) stream.Launch([] {});
  const absl::Cleanup finish = [&] {
    for (memory::FakeStream& stream : *streams) stream.Finish(10);
  };
  std::vector<Tensor> into;
  for (const int device : {1, 2})
    into.push_back(*Tensor::Empty(kFloat32, Shape(8), Device::Fake(device)));
  std::vector<std::shared_ptr<Channel>> channels;
  std::vector<Parcel<test::InferReply>> replies;
  std::vector<Call<Tensor>> fetches;
  for (size_t i = 0; i < kLinks; ++i) {
    channels.push_back(Channel::Create(giver.loop.server().address(),
                                       ChannelOptions().set_require_transport("shm")));
    auto reply = test::Inference::Stub(channels.back()).Infer(InferParcel()).Get();
    REQUIRE_CODE(reply.status(), kOk);
    replies.push_back(*std::move(reply));
    for (size_t k = 0; k < kOfLink; ++k) {
      const Placement place =
          Placement::Into(into[i % 2]).InStream(DeviceStream(&(*streams)[i % kStreams]));
      fetches.push_back(replies.back().Fetch(replies.back()->output(), place));
    }
  }
  const auto stand = [&] { return CountDone(fetches) == static_cast<ptrdiff_t>(kLinks * kOfLink); };
  CHECK(Eventually(stand));
  auto reply = giver.Get();
  auto other = reply.Fetch(reply->output(), Device::Host());
  CHECK(Eventually([&] { return other.done(); }));
}

}  // namespace
}  // namespace verbena
