// Tasks around calls: temporaries in co_await, depth, exceptions, frames that die while they wait.
#include <coroutine>
#include <optional>
#include <stdexcept>

#include "absl/synchronization/mutex.h"
#include "rpc/base/log.h"
#include "tests/client/fixture.h"

namespace verbena {
namespace {

using absl::Status;
using absl::StatusOr;
using test::HelloReply;
using test::HelloRequest;

Task<Status> TakesParcel(test::Inference::Stub stub, Parcel<test::InferRequest> parcel) {
  StatusOr<Parcel<test::InferReply>> reply = co_await stub.Infer(parcel);
  co_return reply.status();
}

Task<Status> Temporaries(test::Greeter::Stub greeter, test::Inference::Stub inference) {
  auto a = co_await greeter.SayHello(
      RequestFor("x"),
      CallOptions().set_timeout(absl::Seconds(10)).add_metadata("key", LongText()));
  if (!a.ok()) co_return a.status();
  auto b = co_await greeter.SayHello({}, {});
  if (!b.ok()) co_return b.status();
  if (!(co_await greeter.SayHello(RequestFor("z"))).ok()) co_return absl::InternalError("z");
  const std::string joined = (co_await greeter.SayHello(RequestFor(LongText())))->text() +
                             (co_await greeter.SayHello(RequestFor(LongText())))->text();
  if (joined.size() < 128) co_return absl::InternalError("joined");
  VERBENA_CO_ASSIGN_OR_RETURN(Parcel<test::InferReply> reply,
                              co_await inference.Infer(InferParcel()));
  Tensor mine = FloatTensor({0, 0, 0, 0});
  auto into = co_await reply.Fetch(reply->output(), Placement::Into(mine));
  if (!into.ok() || At(mine, 3) != 8) co_return absl::InternalError("into");
  auto here = co_await reply.Fetch(reply->output(), Device::Host());
  if (!here.ok() || At(*here, 0) != 2) co_return absl::InternalError("here");
  auto slice = co_await reply.Fetch(reply->output(), {1, 2});
  if (!slice.ok() || slice->shape()[0] != 1 || At(*slice, 0) != 4)
    co_return absl::InternalError("slice");
  Tensor pair = FloatTensor({0, 0});
  auto both = co_await reply.Fetch(reply->output(), TensorSlice(1, 3), Placement::Into(pair));
  if (!both.ok() || At(*both, 1) != 6) co_return absl::InternalError("both");
  for (int i = 0; i < 3; ++i) {
    Status status = co_await TakesParcel(inference, InferParcel());
    if (!status.ok()) co_return status;
  }
  co_return absl::OkStatus();
}

TEST_CASE("temporaries everywhere in co_await expressions", "[client][coroutine]") {
  Greeter greeter;
  Inference inference;
  const Status status = Run(Temporaries(greeter.stub, inference.stub));
  INFO(status.ToString());
  REQUIRE(status.ok());
}

Task<int> One() { co_return 1; }
Task<int> ReadyOne() { return 1; }
Task<int> Many(int n) {
  int sum = 0;
  for (int i = 0; i < n; ++i) {
    sum += co_await One();
    sum += co_await ReadyOne();
  }
  co_return sum;
}
TEST_CASE("half a million awaits run on a flat stack", "[client][coroutine]") {
  REQUIRE(Run(Many(500000)) == 1000000);
}

Task<int> Throws() {
  throw std::runtime_error("inner");
  co_return 0;
}
Task<int> Catches() {
  try {
    co_return co_await Throws();
  } catch (const std::runtime_error&) {
    co_return 7;
  }
}
TEST_CASE("exceptions pass through tasks", "[client][coroutine]") {
  REQUIRE(Run(Catches()) == 7);
  REQUIRE_THROWS_AS(Run(Throws()), std::runtime_error);
}

Task<Status> Hello(test::Greeter::Stub stub, std::string name) {
  StatusOr<HelloReply> reply = co_await stub.SayHello(RequestFor(name));
  co_return reply.status();
}
Task<int> Together(test::Greeter::Stub stub) {
  auto [a, b, c] = co_await WhenAll(Hello(stub, "a"), Hello(stub, "b"), One());
  co_return (a.ok() ? 10 : 0) + (b.ok() ? 100 : 0) + c;
}
TEST_CASE("WhenAll runs tasks at the same time", "[client][coroutine]") {
  Greeter greeter;
  REQUIRE(Run(Together(greeter.stub)) == 111);
}

Task<int> ThrowsLater(test::Greeter::Stub stub) {
  (void)co_await stub.SayHello(RequestFor("x"));
  throw std::runtime_error("later");
}
TEST_CASE("WhenAll throws the first exception in the order of its tasks, once all have ended",
          "[client][coroutine]") {
  Greeter greeter;
  REQUIRE_THROWS_WITH(Run(WhenAll(Hello(greeter.stub, "a"), ThrowsLater(greeter.stub), Throws())),
                      "later");
}

// A coroutine that nobody but the test owns.
struct Manual {
  struct promise_type {
    Manual get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() {}
  };
  std::coroutine_handle<promise_type> handle;
};
Task<void> WaitsForEver(int& alive) {
  struct Counted {
    explicit Counted(int& a) : alive(++a) {}
    ~Counted() { --alive; }
    int& alive;
  };
  const Counted counted(alive);
  co_await std::suspend_always();
}
Manual WaitsForAll(int& alive) {
  (void)co_await WhenAll(WaitsForEver(alive), One(), WaitsForEver(alive));
}
TEST_CASE("a WhenAll that is destroyed while it waits takes its tasks with it",
          "[client][coroutine]") {
  int alive = 0;
  const Manual waiting = WaitsForAll(alive);
  CHECK(alive == 2);
  waiting.handle.destroy();
  CHECK(alive == 0);
}

Manual WaitsOnCall(test::Greeter::Stub stub) {
  (void)co_await stub.SayHello(RequestFor(LongText()),
                               CallOptions().add_metadata("key", LongText()));
}
Task<Status> DestroyWhileWaiting(test::Greeter::Stub stub) {
  // At once, and after the call was sent; both on the reactor, where such frames live.
  WaitsOnCall(stub).handle.destroy();
  Manual waiting = WaitsOnCall(stub);
  StatusOr<HelloReply> other = co_await stub.SlowHello(RequestFor("meanwhile"));
  waiting.handle.destroy();
  co_return other.status();
}
TEST_CASE("a coroutine frame may be destroyed while it waits", "[client][coroutine]") {
  Greeter greeter;
  greeter.mock.on_SayHello = [](ServerContext& context, const HelloRequest&,
                                HelloReply&) -> Task<Status> {
    co_await context.Cancelled();
    co_return absl::OkStatus();
  };
  REQUIRE(Run(DestroyWhileWaiting(greeter.stub)).ok());
  // The calls of both frames are gone; the channel goes on.
  REQUIRE(greeter.stub.SlowHello(RequestFor("after")).Get().ok());
}

TEST_CASE("handlers that throw give UNKNOWN with a fixed text", "[server][handler]") {
  Greeter greeter;
  greeter.mock.on_SayHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Task<Status> {
    throw std::runtime_error("secret");
  };
  Status status = greeter.stub.SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kUnknown);
  REQUIRE(status.message() == "the handler threw an exception");
  greeter.mock.on_SayHello = [](ServerContext& context, const HelloRequest&,
                                HelloReply&) -> Task<Status> {
    co_await context.Sleep(absl::Microseconds(10));
    throw 5;
  };
  REQUIRE_CODE(greeter.stub.SayHello(RequestFor("a")).Get().status(), kUnknown);
  greeter.mock.on_SlowHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Status {
    throw std::string("boom");
  };
  REQUIRE_CODE(greeter.stub.SlowHello(RequestFor("a")).Get().status(), kUnknown);
}

TEST_CASE("what a handler throws is in the server's log, ever less often", "[server][handler]") {
  absl::Mutex mutex;
  std::vector<std::string> lines;
  SetLogSink([&](LogLevel, absl::string_view line) {
    absl::MutexLock lock(&mutex);
    lines.emplace_back(line);
  });
  Greeter greeter;
  greeter.mock.on_SayHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Task<Status> {
    throw std::runtime_error("secret\nline");
  };
  greeter.mock.on_SlowHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Status {
    throw 5;
  };
  for (int i = 0; i < 5; ++i) {
    REQUIRE_CODE(greeter.stub.SayHello(RequestFor("a")).Get().status(), kUnknown);
  }
  REQUIRE_CODE(greeter.stub.SlowHello(RequestFor("a")).Get().status(), kUnknown);
  SetLogSink({});
  const std::string threw = "the handler of /test.Greeter/SayHello threw secret\\nline";
  absl::MutexLock lock(&mutex);
  REQUIRE(lines == std::vector<std::string>{
                       threw, threw + " (exception 2 of it)", threw + " (exception 4 of it)",
                       "the handler of /test.Greeter/SlowHello threw what is no "
                       "std::exception"});
}

}  // namespace
}  // namespace verbena
