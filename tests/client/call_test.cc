// Call<T>: three ways to take a result, once; dropping, moving, cancelling.
#include <memory>
#include <optional>
#include <stop_token>
#include <thread>

#include "google/protobuf/arena.h"
#include "tests/client/fixture.h"
#include "tests/transports.h"

namespace verbena {
namespace {

using absl::Status;
using absl::StatusOr;
using test::HelloReply;
using test::HelloRequest;

// What happened to a handler; outlives the server that runs it.
struct Seen {
  std::atomic<int> started{0};
  std::atomic<int> cancelled{0};
};

// A handler that ends when it is cancelled, and says so.
void WaitForCancellation(Greeter& greeter, Seen& seen) {
  greeter.mock.on_SayHello = [&seen](ServerContext& context, const HelloRequest&,
                                     HelloReply&) -> Task<Status> {
    ++seen.started;
    const bool slept = co_await context.Sleep(absl::Seconds(20));
    if (!slept) ++seen.cancelled;
    co_return absl::OkStatus();
  };
}

TEST_CASE("a blocking call returns the reply and its report", "[client][call]") {
  Greeter greeter;
  auto call = greeter.stub.SayHello(RequestFor("a"));
  StatusOr<HelloReply> reply = call.Get();
  REQUIRE(reply.ok());
  REQUIRE(reply->text() == "Hello, a");
  REQUIRE(!call.report().transport.empty());
  REQUIRE(call.report().peer == greeter.loop.channel()->target());
}

TEST_CASE("a method marked blocking runs as a plain function", "[client][call]") {
  Greeter greeter;
  REQUIRE(greeter.stub.SlowHello(RequestFor("b")).Get()->text() == "Hello, b");
}

TEST_CASE("the request may die or change once the stub has returned", "[client][lifetime]") {
  Greeter greeter;
  auto request = std::make_unique<HelloRequest>(RequestFor(LongText()));
  auto call = greeter.stub.SayHello(*request);
  request->set_name("changed");
  request.reset();
  REQUIRE(call.Get()->text() == "Hello, " + LongText());
}

TEST_CASE("stub and channel may die before the call ends", "[client][lifetime]") {
  Greeter greeter;
  std::optional<Call<HelloReply>> call;
  {
    auto channel = Channel::Create(greeter.loop.server().address());
    call.emplace(test::Greeter::Stub(channel).SayHello(RequestFor("c")));
  }
  REQUIRE(call->Get().ok());
}

TEST_CASE("a result is taken once", "[client][call]") {
  Greeter greeter;
  auto call = greeter.stub.SayHello(RequestFor("a"));
  REQUIRE(call.Get().ok());
  REQUIRE_CODE(call.Get().status(), kFailedPrecondition);

  auto moved_from = greeter.stub.SayHello(RequestFor("b"));
  auto moved_to = std::move(moved_from);
  REQUIRE_CODE(moved_from.Get().status(), kFailedPrecondition);
  REQUIRE(moved_to.Get().ok());

  // Assigned over: the first call is dropped.
  auto assigned = greeter.stub.SayHello(RequestFor("c"));
  assigned = greeter.stub.SayHello(RequestFor("d"));
  REQUIRE(assigned.Get()->text() == "Hello, d");
}

Task<Status> AwaitTwice(test::Greeter::Stub stub) {
  auto call = stub.SayHello(RequestFor("a"));
  StatusOr<HelloReply> first = co_await call;
  if (!first.ok()) co_return first.status();
  StatusOr<HelloReply> second = co_await call;
  co_return second.status();
}
TEST_CASE("awaiting twice is an error, not a hang", "[client][call]") {
  Greeter greeter;
  REQUIRE_CODE(Run(AwaitTwice(greeter.stub)), kFailedPrecondition);
}

TEST_CASE("a callback runs once, never inline, and may be move-only", "[client][call]") {
  std::atomic<int> calls{0};
  Greeter greeter;
  auto owned = std::make_unique<int>(5);
  std::thread::id here = std::this_thread::get_id();
  std::atomic<bool> wrong{false};
  greeter.stub.SayHello(RequestFor("a"))
      .Then([&, owned = std::move(owned)](StatusOr<HelloReply> reply) {
        if (*owned != 5 || !reply.ok() || std::this_thread::get_id() == here) wrong = true;
        ++calls;
      });
  REQUIRE(Eventually([&] { return calls == 1; }));

  // On a call that has ended already.
  auto ended = greeter.stub.SayHello(RequestFor("b"));
  REQUIRE(Eventually([&] { return ended.done(); }));
  ended.Then([&](StatusOr<HelloReply>) { ++calls; });
  REQUIRE_CODE(ended.Get().status(), kFailedPrecondition);
  REQUIRE(Eventually([&] { return calls == 2; }));

  // From within a callback.
  greeter.stub.SayHello(RequestFor("c")).Then([&](StatusOr<HelloReply>) {
    greeter.stub.SayHello(RequestFor("d")).Then([&](StatusOr<HelloReply>) { ++calls; });
  });
  REQUIRE(Eventually([&] { return calls == 3; }));
  REQUIRE(!wrong);
}

TEST_CASE("Get on a reactor thread is refused with advice", "[client][call]") {
  std::atomic<int> seen{-1};
  Greeter greeter;
  greeter.stub.SayHello(RequestFor("a")).Then([&](StatusOr<HelloReply>) {
    seen = static_cast<int>(greeter.stub.SayHello(RequestFor("b")).Get().status().code());
  });
  REQUIRE(Eventually([&] { return seen >= 0; }));
  REQUIRE(seen == static_cast<int>(absl::StatusCode::kFailedPrecondition));
  auto inside = [](test::Greeter::Stub stub) -> Task<Status> {
    co_return stub.SayHello(RequestFor("c")).Get().status();
  };
  REQUIRE_CODE(Run(inside(greeter.stub)), kFailedPrecondition);
}

TEST_CASE("dropping a call cancels its handler", "[client][cancel]") {
  Seen seen;
  Greeter greeter;
  WaitForCancellation(greeter, seen);
  {
    auto call = greeter.stub.SayHello(RequestFor("a"));
    REQUIRE(Eventually([&] { return seen.started == 1; }));
  }
  REQUIRE(Eventually([&] { return seen.cancelled == 1; }));
}

TEST_CASE("a stop token cancels, before and during the call, from any thread", "[client][cancel]") {
  Seen seen;
  Greeter greeter;
  WaitForCancellation(greeter, seen);
  std::stop_source before;
  before.request_stop();
  REQUIRE_CODE(
      greeter.stub.SayHello(RequestFor("a"), CallOptions().set_cancellation(before.get_token()))
          .Get()
          .status(),
      kCancelled);
  std::stop_source during;
  std::jthread stopper([&] {
    (void)Eventually([&] { return seen.started == 1; });
    during.request_stop();
  });
  REQUIRE_CODE(
      greeter.stub.SayHello(RequestFor("b"), CallOptions().set_cancellation(during.get_token()))
          .Get()
          .status(),
      kCancelled);
  REQUIRE(Eventually([&] { return seen.cancelled == seen.started; }));
}

TEST_CASE("a call cancelled twice ends once with CANCELLED", "[client][cancel]") {
  Seen seen;
  Greeter greeter;
  WaitForCancellation(greeter, seen);
  auto call = greeter.stub.SayHello(RequestFor("a"));
  call.Cancel();
  call.Cancel();
  REQUIRE_CODE(call.Get().status(), kCancelled);
}

TEST_CASE("a deadline ends the call within 20 ms of it and cancels the handler",
          "[client][deadline]") {
  Seen seen;
  Greeter greeter;
  WaitForCancellation(greeter, seen);
  REQUIRE(greeter.loop.channel()->WaitUntilReady(absl::Seconds(5)).ok());
  const absl::Time begin = absl::Now();
  REQUIRE_CODE(
      greeter.stub.SayHello(RequestFor("a"), CallOptions().set_timeout(absl::Milliseconds(30)))
          .Get()
          .status(),
      kDeadlineExceeded);
  const absl::Duration took = absl::Now() - begin;
  REQUIRE(took >= absl::Milliseconds(29));
  // A loaded machine; the bound itself is the session tests'.
  REQUIRE(took < absl::Milliseconds(500) * kSlowdown);
  REQUIRE(Eventually([&] { return seen.cancelled == seen.started; }));
}

TEST_CASE("deadline and cancellation propagate to a downstream call", "[client][cancel]") {
  Seen seen;
  Greeter back, front;
  WaitForCancellation(back, seen);
  front.mock.on_SayHello = [&](ServerContext& context, const HelloRequest& request,
                               HelloReply& reply) -> Task<Status> {
    const CallOptions options = CallOptions::FromContext(context);
    co_return co_await back.stub.SayHello(request, options).Into(reply);
  };
  auto call = front.stub.SayHello(RequestFor("a"));
  REQUIRE(Eventually([&] { return seen.started == 1; }));
  call.Cancel();
  REQUIRE_CODE(call.Get().status(), kCancelled);
  REQUIRE(Eventually([&] { return seen.cancelled == 1; }));
}

TEST_CASE("GetInto reuses the reply's memory, also on an arena", "[client][call]") {
  Greeter greeter;
  google::protobuf::Arena arena;
  auto* reply = google::protobuf::Arena::CreateMessage<HelloReply>(&arena);
  REQUIRE(greeter.stub.SayHello(RequestFor(LongText() + LongText())).GetInto(*reply).ok());
  const char* const text = reply->text().data();
  REQUIRE(greeter.stub.SayHello(RequestFor(LongText())).GetInto(*reply).ok());
  REQUIRE(reply->text().data() == text);
}

TEST_CASE("many threads share a channel", "[client][threads]") {
  Greeter greeter;
  std::atomic<int> good{0};
  std::vector<std::thread> threads;
  for (int t = 0; t < 8; ++t) {
    threads.emplace_back([&, t] {
      for (int i = 0; i < 200; ++i) {
        const std::string name = absl::StrCat(t, "-", i);
        StatusOr<HelloReply> reply = greeter.stub.SayHello(RequestFor(name)).Get();
        if (reply.ok() && reply->text() == "Hello, " + name) ++good;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  REQUIRE(good == 1600);
}

TEST_CASE("metadata travels both ways", "[client][metadata]") {
  Greeter greeter;
  std::string binary("\0\xff\n", 3);
  greeter.mock.on_SayHello = [&](ServerContext& context, const HelloRequest&,
                                 HelloReply& reply) -> Task<Status> {
    reply.set_text(std::string(context.metadata().Get("user").value_or("none")));
    context.add_trailing_metadata("cost", "3");
    context.add_trailing_metadata("raw-bin", context.metadata().Get("token-bin").value_or(""));
    return absl::OkStatus();
  };
  CallOptions options;
  options.add_metadata("user", "ann").add_metadata("token-bin", binary);
  auto call = greeter.stub.SayHello(RequestFor("a"), options);
  REQUIRE(call.Get()->text() == "ann");
  REQUIRE(call.report().trailing_metadata.Get("cost") == "3");
  REQUIRE(call.report().trailing_metadata.Get("raw-bin") == binary);
}

TEST_CASE("metadata that breaks the rules is refused by name", "[client][metadata]") {
  Greeter greeter;
  auto with = [&](absl::string_view key, absl::string_view value) {
    return greeter.stub.SayHello(RequestFor("a"), CallOptions().add_metadata(key, value))
        .Get()
        .status();
  };
  REQUIRE_CODE(with("Upper", "v"), kInvalidArgument);
  REQUIRE_CODE(with("verbena-x", "v"), kInvalidArgument);
  REQUIRE_CODE(with("key", "line\n"), kInvalidArgument);
  REQUIRE_CODE(with("", "v"), kInvalidArgument);
  const Status large = with("key", std::string(9000, 'v'));
  REQUIRE_CODE(large, kResourceExhausted);
  REQUIRE(large.message().find("8192") != absl::string_view::npos);
}

TEST_CASE("a handler's metadata that breaks the rules ends its call by name",
          "[client][metadata]") {
  Greeter greeter;
  std::string key = "Upper";
  Status answer;
  greeter.mock.on_SayHello = [&](ServerContext& context, const HelloRequest&,
                                 HelloReply&) -> Task<Status> {
    context.add_trailing_metadata(key, "v");
    return answer;
  };
  auto call = greeter.stub.SayHello(RequestFor("a"));
  Status status = call.Get().status();
  REQUIRE_CODE(status, kInternal);
  REQUIRE(status.message().find("metadata key \"Upper\"") != absl::string_view::npos);
  REQUIRE(call.report().trailing_metadata.empty());
  // What the handler says has more weight.
  answer = absl::NotFoundError("nobody");
  status = greeter.stub.SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kNotFound);
  answer = absl::OkStatus();
  key = "fine";
  REQUIRE(greeter.stub.SayHello(RequestFor("a")).Get().ok());
}

TEST_CASE("options of a channel that are out of range fail its calls with the value",
          "[client][channel]") {
  const auto status_of = [](const ChannelOptions& options) {
    test::Greeter::Stub stub(Channel::Create("127.0.0.1:1", options));
    return stub.SayHello(RequestFor("a")).Get().status();
  };
  const std::pair<ChannelOptions, const char*> cases[] = {
      {ChannelOptions().set_connect_timeout(absl::ZeroDuration()), "a connect timeout of 0"},
      {ChannelOptions().set_backoff(-absl::Seconds(1), absl::Seconds(1)),
       "a first back-off of -1s"},
      {ChannelOptions().set_backoff(absl::Seconds(1), absl::ZeroDuration()),
       "a longest back-off of 0"},
      {ChannelOptions().set_reply_bytes_max(uint64_t{1} << 31), "2147483648 bytes"},
  };
  for (const auto& [options, words] : cases) {
    const Status status = status_of(options);
    INFO(status.ToString());
    REQUIRE_CODE(status, kInvalidArgument);
    REQUIRE(status.message().find(words) != absl::string_view::npos);
  }
}

TEST_CASE("a target that makes no sense fails its calls", "[client][channel]") {
  for (const char* target : {"", "nowhere", "host:", "host:99999", "unix:relative", ":7000"}) {
    test::Greeter::Stub stub(Channel::Create(target));
    REQUIRE_CODE(stub.SayHello(RequestFor("a")).Get().status(), kInvalidArgument);
  }
}

TEST_CASE("a refused connection is UNAVAILABLE and names the address", "[client][channel]") {
  test::Greeter::Stub stub(Channel::Create("127.0.0.1:1"));
  const Status status = stub.SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kUnavailable);
  REQUIRE(status.message().find("127.0.0.1:1") != absl::string_view::npos);
}

TEST_CASE("wait_for_ready outlasts a missing server until the deadline", "[client][channel]") {
  test::Greeter::Stub stub(Channel::Create("127.0.0.1:1"));
  CallOptions options;
  options.set_wait_for_ready(true).set_timeout(absl::Milliseconds(200));
  REQUIRE_CODE(stub.SayHello(RequestFor("a"), options).Get().status(), kDeadlineExceeded);
}

TEST_CASE("a channel finds the server again after its restart", "[client][channel]") {
  test::Greeter::Mock mock;
  mock.on_SayHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Task<Status> {
    return absl::OkStatus();
  };
  auto first = Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(mock));
  REQUIRE(first.ok());
  const std::string address = (*first)->address();
  auto channel = Channel::Create(
      address, ChannelOptions().set_backoff(absl::Milliseconds(10), absl::Milliseconds(20)));
  test::Greeter::Stub stub(channel);
  REQUIRE(stub.SayHello(RequestFor("a")).Get().ok());
  first->reset();
  REQUIRE_CODE(stub.SayHello(RequestFor("b")).Get().status(), kUnavailable);
  auto second = Server::Start(ServerOptions().set_listen(address).add_service(mock));
  REQUIRE(second.ok());
  CallOptions options;
  options.set_wait_for_ready(true).set_timeout(absl::Seconds(5));
  REQUIRE(stub.SayHello(RequestFor("c"), options).Get().ok());
}

TEST_CASE("an application can require a transport", "[client][channel]") {
  Greeter greeter;
  auto with = [&](absl::string_view name) {
    return Channel::Create(greeter.loop.server().address(),
                           ChannelOptions().set_require_transport(name));
  };
  for (const std::string& name : TestTransports()) {
    auto channel = with(name);
    auto call = test::Greeter::Stub(channel).SayHello(RequestFor("a"));
    REQUIRE(call.Get().ok());
    REQUIRE(call.report().transport == name);
    REQUIRE(channel->status().transport == name);
  }
  const Status status =
      test::Greeter::Stub(with("carrier-pigeon")).SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kFailedPrecondition);
  REQUIRE(status.message().find("carrier-pigeon") != absl::string_view::npos);
}

TEST_CASE("streams say UNIMPLEMENTED until they are carried", "[client][stream]") {
  Greeter greeter;
  auto stream = greeter.stub.Chat();
  HelloReply reply;
  REQUIRE(!stream.Write(RequestFor("a")).Get());
  REQUIRE(!stream.Read(reply).Get());
  REQUIRE_CODE(stream.Finish().Get(), kUnimplemented);
}

}  // namespace
}  // namespace verbena
