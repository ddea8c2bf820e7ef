// Fetches in the order of streams that stand still: what ends all the same, and what does not wait
// for them.
#include <algorithm>
#include <atomic>
#include <optional>
#include <utility>
#include <vector>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/match.h"
#include "rpc/memory/fake_stream.h"
#include "tests/client/device_fixture.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

ptrdiff_t CountDone(const std::vector<Call<Tensor>>& calls) {
  return std::count_if(calls.begin(), calls.end(),
                       [](const Call<Tensor>& call) { return call.done(); });
}

TEST_CASE("a cancelled call ends though its reader's stream stands still, and its memory is kept",
          "[client][device][order]") {
  Fake(1);
  WatchedTensor watched(64);
  std::atomic<bool> fetched{false};
  memory::FakeStream& stream = NewStream();
  stream.Launch([] {});
  Tensor into = Blank(Shape(64));
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
      parcel.Attach(*parcel->mutable_input(), watched.Take());
      return stub.Infer(parcel);
    }();
    REQUIRE(Eventually([&] { return fetched.load(); }));
    call.Cancel();
    REQUIRE(Eventually([&] { return call.done(); }));
    REQUIRE_CODE(std::move(call).Get().status(), kCancelled);
    // The link and its other calls go on.
    REQUIRE_CODE(stub.Infer(InferParcel()).Get().status(), kOk);
    CHECK_FALSE(watched.released.load());
    CHECK(ValuesOf(Fake(1), into) == std::vector<float>(64));
    stream.Finish();
    REQUIRE(Eventually([&] { return watched.released.load(); }));
    CHECK(ValuesOf(Fake(1), into) == watched.sent);
  }
}

TEST_CASE("nothing moves in the order of a stream that is another on each thread",
          "[client][device][order]") {
  Fake(1);
  UserTensor user(Shape(64));
  for (const char* const transport : {"shm", "tcp"}) {
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    const auto reply = giver.Get();
    Tensor into = Blank(64);
    const DeviceStream per_thread(reinterpret_cast<void*>(2));
    auto fetch = reply.Fetch(reply->output(), Placement::Into(into).InStream(per_thread));
    REQUIRE_CODE(std::move(fetch).Get().status(), kInvalidArgument);
    CHECK(ValuesOf(Fake(1), into) == std::vector<float>(64));
  }
}

// Over shm: between devices, whose copies stand in their stream at once; by way of stages; and from
// the host.
enum class Way { kDirect, kStaged, kFromHost };

struct Late {
  static constexpr int64_t kCount = 3 << 20;  // more than all stages of a link
  explicit Late(Way w) : way(w), user{Shape(kCount)} {
    if (way == Way::kStaged) Fake(0).RefuseExports(absl::FailedPreconditionError("not shared"));
    given.emplace(way == Way::kFromHost ? FloatTensor(Counting(kCount)) : user.tensor,
                  ChannelOptions().set_require_transport("shm"));
    reply.emplace(given->Get());
    stream.Launch([] {});
  }
  ~Late() {
    stream.Finish(1000);
    Fake(0).RefuseExports(absl::OkStatus());
  }
  Call<Tensor> Fetch(Tensor& into, memory::FakeStream& in) {
    return reply->Fetch((*reply)->output(), Placement::Into(into).InStream(DeviceStream(&in)));
  }
  // Whatever has no stream, or another, arrives.
  void OthersArrive() {
    for (const Device place : {Device::Fake(1), Device::Fake(2), Device::Host()}) {
      auto call = reply->Fetch((*reply)->output(), place);
      REQUIRE(Eventually([&] { return call.done(); }));
      auto got = std::move(call).Get();
      REQUIRE_CODE(got.status(), kOk);
      if (place == Device::Host()) continue;
      CHECK(ValuesOf(Fake(place.index()), *got) == Counting(kCount));
    }
    memory::FakeStream& other = NewStream();
    Tensor into = Blank(Shape(kCount));
    auto call = Fetch(into, other);
    REQUIRE(Eventually([&] { return call.done(); }));
    REQUIRE_CODE(std::move(call).Get().status(), kOk);
    std::atomic<bool> seen{false};
    other.Launch([&] { seen = ValuesOf(Fake(1), into) == Counting(kCount); });
    other.Finish();
    CHECK(Eventually([&] { return seen.load(); }));
  }

  FakeDevice &from = Fake(0), &to = Fake(1), &elsewhere = Fake(2);
  const Way way;
  UserTensor user;
  std::optional<Giver> given;
  std::optional<Parcel<test::InferReply>> reply;
  memory::FakeStream& stream = NewStream();
};

TEST_CASE("fetches do not wait for others' streams that stand still", "[client][device][order]") {
  const Way way = GENERATE(Way::kDirect, Way::kStaged, Way::kFromHost);
  Late late(way);
  std::vector<Tensor> into;
  std::vector<Call<Tensor>> fetches;
  for (int i = 0; i < 3; ++i) {
    into.push_back(Blank(Shape(Late::kCount)));
    fetches.push_back(late.Fetch(into.back(), late.stream));
  }
  {
    // One that is given up ends at once, also when it stands in the stream already.
    Tensor unwanted = Blank(Shape(Late::kCount));
    auto cancelled = late.Fetch(unwanted, late.stream);
    cancelled.Cancel();
    REQUIRE(Eventually([&] { return cancelled.done(); }));
  }
  late.OthersArrive();
  for (auto& fetch : fetches) CHECK(fetch.done() == (way == Way::kDirect));
  for (Tensor& tensor : into) CHECK(ValuesOf(Fake(1), tensor)[5] == 0);
  late.stream.Finish();
  for (size_t i = 0; i < fetches.size(); ++i) {
    REQUIRE(Eventually([&] { return fetches[i].done(); }));
    REQUIRE_CODE(std::move(fetches[i]).Get().status(), kOk);
    CHECK(ValuesAfter(late.stream, into[i]) == Counting(Late::kCount));
  }
}

TEST_CASE("fetches for which a stream has no room come when others of it have ended",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(64));
  Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
  auto reply = giver.Get();
  memory::FakeStream& stream = NewStream();
  const absl::Cleanup finish = [&] { stream.Finish(1000); };
  stream.Launch([] {});
  constexpr size_t kFetches = 100;
  std::vector<Tensor> into;
  std::vector<Call<Tensor>> fetches;
  for (size_t i = 0; i < kFetches; ++i) {
    into.push_back(Blank(Shape(64)));
    fetches.push_back(
        reply.Fetch(reply->output(), Placement::Into(into.back()).InStream(DeviceStream(&stream))));
  }
  const auto done = [&] { return CountDone(fetches); };
  REQUIRE(Eventually([&] { return done() >= 24; }));
  // Nobody else waits for them, and one of those is given up.
  auto other = reply.Fetch(reply->output(), Device::Fake(1));
  REQUIRE(Eventually([&] { return other.done(); }));
  CHECK(done() < static_cast<ptrdiff_t>(kFetches));
  fetches[kFetches - 2].Cancel();
  REQUIRE(Eventually([&] { return fetches[kFetches - 2].done(); }));
  stream.Finish();
  REQUIRE(Eventually([&] { return done() == kFetches; }));
  for (size_t i = 0; i < kFetches; ++i) {
    const bool given_up = i == kFetches - 2;
    CHECK(std::move(fetches[i]).Get().ok() != given_up);
    if (given_up) continue;
    CHECK(ValuesAfter(stream, into[i]) == Counting(64));
  }
}

TEST_CASE("a fetch of which a part stands in its stream, and for the rest is no room, goes on",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(5000));
  Fake(0).Split(user.allocation.base, 3 * 4096);
  Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
  auto reply = giver.Get();
  memory::FakeStream& stream = NewStream();
  const absl::Cleanup finish = [&] { stream.Finish(1000); };
  const bool given_up = GENERATE(false, true);
  stream.Launch([] {});
  // An odd one stands there already, so that the last pair of READs is torn apart.
  std::vector<Tensor> into;
  std::vector<Call<Tensor>> fetches;
  const auto fetch = [&](const TensorSlice& slice, int64_t count) {
    into.push_back(Blank(Shape(count)));
    fetches.push_back(reply.Fetch(reply->output(), slice,
                                  Placement::Into(into.back()).InStream(DeviceStream(&stream))));
  };
  fetch(TensorSlice(0, 8), 8);
  REQUIRE(Eventually([&] { return fetches[0].done(); }));
  for (int i = 0; i < 20; ++i) fetch(TensorSlice(), 5000);
  const auto done = [&] { return CountDone(fetches); };
  // Fifteen or sixteen, with the other thirty-one READs; of the next ones some.
  REQUIRE(Eventually([&] { return done() >= 10; }));
  auto other = reply.Fetch(reply->output(), Device::Fake(1));
  REQUIRE(Eventually([&] { return other.done(); }));
  CHECK(done() < 21);
  std::vector<bool> stands;
  for (const auto& call : fetches) stands.push_back(call.done());
  if (given_up) {
    for (auto& call : fetches) call.Cancel();
    REQUIRE(Eventually([&] { return done() == 21; }));
  }
  stream.Finish();
  REQUIRE(Eventually([&] { return done() == 21; }));
  for (size_t i = 0; i < fetches.size(); ++i) {
    const bool ok = std::move(fetches[i]).Get().ok();
    CHECK((ok || (given_up && !stands[i])));
    if (given_up || i == 0) continue;
    CHECK(ValuesAfter(stream, into[i]) == Counting(5000));
  }
}

TEST_CASE("what is fetched in several parts, or with more to do, ends when it is given up",
          "[client][device][order]") {
  Fake(0), Fake(1);
  constexpr int64_t kRows = 40, kWide = 32 << 10;
  UserTensor user(Shape(kRows, 2 * kWide));
  Giver giver(user.tensor, ChannelOptions().set_require_transport("shm"));
  auto reply = giver.Get();
  memory::FakeStream& stream = NewStream();
  const absl::Cleanup finish = [&] { stream.Finish(1000); };
  stream.Launch([] {});
  const auto in_stream = [&] {
    return Placement::On(Device::Fake(1)).InStream(DeviceStream(&stream));
  };
  // All of it stands in the stream, behind which the CPU has something to do.
  auto all = reply.FetchAll(in_stream());
  {
    auto behind = reply.Fetch(reply->output(), in_stream());
    REQUIRE(Eventually([&] { return behind.done(); }));
  }
  CHECK_FALSE(all.done());
  all.Cancel();
  REQUIRE(Eventually([&] { return all.done(); }));
  REQUIRE_CODE(std::move(all).Get(), kCancelled);
  // Some of its parts stand there, for the others there is no room.
  auto parts = reply.Fetch(reply->output(), TensorSlice().NextAll().Next(0, kWide), in_stream());
  auto other = reply.Fetch(reply->output(), Device::Fake(1));
  REQUIRE(Eventually([&] { return other.done(); }));
  CHECK_FALSE(parts.done());
  parts.Cancel();
  REQUIRE(Eventually([&] { return parts.done(); }));
  REQUIRE_CODE(std::move(parts).Get().status(), kCancelled);
}

TEST_CASE("a fetch in the order of a stream that is being captured says so, and the next one comes",
          "[client][device][order]") {
  Fake(0), Fake(1);
  UserTensor user(Shape(64));
  memory::FakeStream stream;
  for (const std::string transport : {"shm", "tcp"}) {
    INFO(transport);
    Giver giver(user.tensor, ChannelOptions().set_require_transport(transport));
    auto reply = giver.Get();
    Tensor into = Blank(Shape(64));
    const auto fetch = [&] {
      return reply.Fetch(reply->output(), Placement::Into(into).InStream(DeviceStream(&stream)));
    };
    stream.Capture(true);
    const absl::Status status = fetch().Get().status();
    CHECK(status.code() == absl::StatusCode::kFailedPrecondition);
    CHECK(absl::StrContains(status.message(), "is being captured"));
    stream.Capture(false);
    REQUIRE_CODE(fetch().Get().status(), kOk);
    CHECK(ValuesAfter(stream, into) == Counting(64));
  }
}

}  // namespace
}  // namespace verbena
