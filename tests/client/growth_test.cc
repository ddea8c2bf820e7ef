// What needs memory that is not there yet waits for it; the reactor, and all else on it, does not.
#include <vector>

#include "absl/synchronization/notification.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

// Larger than what pools share: each gets a slab of its own. So far apart that no slab that was
// made, and kept, for one serves a later one.
constexpr size_t kReplyBytes = 34 << 20;
constexpr size_t kNestedBytes = 46 << 20;
constexpr size_t kCancelledReplyBytes = 62 << 20;
constexpr size_t kFetchedBytes = 100 << 20;

// As long as it lives no pool grows.
class GrowthHeld {
 public:
  GrowthHeld() {
    reactor::PostGrowth([this] {
      held_.Notify();
      released_.WaitForNotification();
      over_.Notify();
    });
    held_.WaitForNotification();
  }
  ~GrowthHeld() { Release(); }
  // Returns when everything that waited for growth has had its turn.
  void Release() {
    if (released_.HasBeenNotified()) return;
    absl::Notification later;
    reactor::PostGrowth([&] { later.Notify(); });
    released_.Notify();
    over_.WaitForNotification();
    later.WaitForNotification();
  }

 private:
  absl::Notification held_, released_, over_;
};

void ExpectCallsGoOn(const test::Greeter::Stub& stub) {
  for (int i = 0; i < 200; ++i) {
    const absl::Status status =
        stub.SayHello(RequestFor("x"), CallOptions().set_timeout(absl::Seconds(5))).Get().status();
    REQUIRE_CODE(status, kOk);
  }
}

const test::Greeter::Stub* nested_stub = nullptr;

Task<absl::Status> Answer(ServerContext&, const test::HelloRequest& request,
                          test::HelloReply& reply) {
  if (request.name() == "large") {
    reply.set_text(std::string(kReplyBytes, 'l'));
  } else if (request.name() == "cancelled") {
    reply.set_text(std::string(kCancelledReplyBytes, 'c'));
  } else if (request.name() == "nested") {
    test::HelloRequest large;
    large.set_name(std::string(kNestedBytes, 'n'));
    Call<test::HelloReply> call = nested_stub->SayHello(large);
    absl::StatusOr<test::HelloReply> nested = co_await call;
    if (!nested.ok()) co_return nested.status();
    reply.set_text("sent");
  } else {
    reply.set_text(std::string(4000, 's'));
  }
  co_return absl::OkStatus();
}

struct Fixture {
  Greeter greeter;
  Fixture() {
    greeter.mock.on_SayHello = &Answer;
    nested_stub = &greeter.stub;
    ExpectCallsGoOn(greeter.stub);
  }
};

TEST_CASE("a large reply waits for memory, other calls on its reactor do not", "[growth]") {
  Fixture f;
  GrowthHeld held;
  Call<test::HelloReply> large = f.greeter.stub.SayHello(RequestFor("large"));
  ExpectCallsGoOn(f.greeter.stub);
  CHECK_FALSE(large.done());
  held.Release();
  const absl::StatusOr<test::HelloReply> reply = large.Get();
  REQUIRE_CODE(reply.status(), kOk);
  CHECK(reply->text() == std::string(kReplyBytes, 'l'));
}

TEST_CASE("a large request that a handler sends waits for memory, its reactor does not",
          "[growth]") {
  Fixture f;
  GrowthHeld held;
  Call<test::HelloReply> nested = f.greeter.stub.SayHello(RequestFor("nested"));
  ExpectCallsGoOn(f.greeter.stub);
  CHECK_FALSE(nested.done());
  held.Release();
  REQUIRE_CODE(nested.Get().status(), kOk);
}

TEST_CASE("with no room at all small calls go on, and new links wait", "[growth]") {
  Fixture f;
  GrowthHeld held;
  std::vector<memory::Block> all;
  for (size_t bytes = 1 << 20; bytes >= 64; bytes /= 2) {
    while (memory::Block block = memory::TryAllocateBlock(bytes)) all.push_back(std::move(block));
  }
  ExpectCallsGoOn(f.greeter.stub);
  Greeter other;
  Call<test::HelloReply> first = other.stub.SayHello(
      RequestFor("x"), CallOptions().set_wait_for_ready(true).set_timeout(absl::Seconds(20)));
  ExpectCallsGoOn(f.greeter.stub);
  held.Release();
  REQUIRE_CODE(first.Get().status(), kOk);
}

TEST_CASE("calls that end before their memory was made leave no memory behind", "[growth]") {
  Fixture f;
  Inference inference;
  static std::vector<std::byte>* const own = new std::vector<std::byte>(kFetchedBytes);
  inference.mock.on_Infer = [](ServerContext&, const Parcel<test::InferRequest>&,
                               Parcel<test::InferReply>& reply) -> Task<absl::Status> {
    Buffer buffer = Buffer::Wrap(own->data(), own->size(), [] {});
    absl::StatusOr<Tensor> tensor =
        Tensor::Wrap(std::move(buffer), kUInt8, Shape(static_cast<int64_t>(own->size())));
    if (!tensor.ok()) return tensor.status();
    reply.Attach(*reply->mutable_output(), *std::move(tensor));
    return absl::OkStatus();
  };
  absl::StatusOr<Parcel<test::InferReply>> reply = inference.stub.Infer(InferParcel()).Get();
  REQUIRE_CODE(reply.status(), kOk);
  const memory::SlabPool::Stats before = memory::PoolHere().stats();
  GrowthHeld held;
  Call<Tensor> fetch = reply->Fetch((*reply)->output());
  Call<test::HelloReply> large = f.greeter.stub.SayHello(RequestFor("cancelled"));
  ExpectCallsGoOn(f.greeter.stub);
  CHECK_FALSE(fetch.done());
  // Both end although no memory can be made.
  fetch.Cancel();
  REQUIRE_CODE(fetch.Get().status(), kCancelled);
  large.Cancel();
  REQUIRE_CODE(large.Get().status(), kCancelled);
  ExpectCallsGoOn(f.greeter.stub);
  held.Release();
  ExpectCallsGoOn(f.greeter.stub);
  CHECK(memory::PoolHere().stats().slabs_made == before.slabs_made);
}

}  // namespace
}  // namespace verbena
