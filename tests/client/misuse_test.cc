// What users get wrong, and values at the ends of their ranges: each has a clear answer.
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <csignal>
#include <memory>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "tests/catch.h"
#include "tests/client/fixture.h"
#include "tests/transports.h"
#include "verbena/verbena.h"

namespace verbena {
namespace {

using test::HelloReply;
using test::HelloRequest;

// Longer than nanoseconds in an int64 can say, and for ever.
const absl::Duration kEndless[] = {absl::Hours(24 * 365 * 280), absl::Hours(24 * 365 * 1000),
                                   absl::InfiniteDuration()};
// In no time.
const absl::Duration kNone[] = {absl::ZeroDuration(), absl::Nanoseconds(-1), absl::Hours(-1),
                                -absl::Hours(24 * 365 * 1000), -absl::InfiniteDuration()};

TEST_CASE("timeouts and deadlines at the ends of their ranges", "[client][deadline]") {
  Greeter greeter;
  REQUIRE(greeter.stub.SayHello(RequestFor("a")).Get().ok());
  for (const absl::Duration time : kEndless) {
    INFO(time);
    CHECK(greeter.stub.SayHello(RequestFor("a"), CallOptions().set_timeout(time)).Get().ok());
    CHECK(greeter.stub.SayHello(RequestFor("a"), CallOptions().set_deadline(absl::Now() + time))
              .Get()
              .ok());
    CHECK(greeter.loop.channel()->WaitUntilReady(time).ok());
  }
  for (const absl::Duration time : kNone) {
    INFO(time);
    CHECK(absl::IsDeadlineExceeded(
        greeter.stub.SayHello(RequestFor("a"), CallOptions().set_timeout(time)).Get().status()));
    CHECK(absl::IsDeadlineExceeded(
        greeter.stub.SayHello(RequestFor("a"), CallOptions().set_deadline(absl::Now() + time))
            .Get()
            .status()));
  }
}

TEST_CASE("a wait for a connection may be endless, or none at all", "[client][channel]") {
  for (const absl::Duration time : kEndless) {
    INFO(time);
    GreeterMock greeter;
    testing::Loopback loop(greeter.mock);
    CHECK(loop.channel()->WaitUntilReady(time).ok());
  }
  for (const absl::Duration time : kNone) {
    INFO(time);
    const auto channel = Channel::Create("127.0.0.1:1");
    CHECK_FALSE(channel->WaitUntilReady(time).ok());
  }
}

TEST_CASE("durations of channels and servers may be endless", "[client][channel]") {
  for (const absl::Duration time : kEndless) {
    INFO(time);
    InferenceMock inference;
    auto server = Server::Start(ServerOptions()
                                    .set_listen("127.0.0.1:0")
                                    .add_service(inference.mock)
                                    .set_handshake_timeout(time)
                                    .set_reply_lease_age_max(time));
    REQUIRE(server.ok());
    test::Inference::Stub stub(Channel::Create(
        (*server)->address(),
        ChannelOptions().set_connect_timeout(time).set_default_timeout(time).set_backoff(time,
                                                                                         time)));
    const absl::StatusOr<Parcel<test::InferReply>> reply = stub.Infer(InferParcel()).Get();
    INFO(reply.status());
    REQUIRE(reply.ok());
    // Expect: the reply's tensor stays.
    absl::SleepFor(absl::Milliseconds(30));
    const absl::StatusOr<Tensor> output = reply->Fetch((*reply)->output()).Get();
    INFO(output.status());
    CHECK(output.ok());
  }
}

TEST_CASE("a handler sleeps as long as it says", "[server][handler]") {
  GreeterMock greeter;
  std::atomic<int> woken{0};
  greeter.mock.on_SayHello = [&](ServerContext& context, const HelloRequest&,
                                 HelloReply&) -> Task<absl::Status> {
    for (const absl::Duration time : kNone) {
      if (!co_await context.Sleep(time)) co_return absl::OkStatus();
    }
    co_await context.Sleep(absl::Hours(24 * 365 * 280));
    ++woken;
    co_return absl::OkStatus();
  };
  testing::Loopback loop(greeter.mock);
  test::Greeter::Stub stub(loop.channel());
  const auto options = CallOptions().set_timeout(absl::Milliseconds(100));
  CHECK(absl::IsDeadlineExceeded(stub.SayHello(RequestFor("a"), options).Get().status()));
  CHECK(Eventually([&] { return woken == 1; }));
}

TEST_CASE("a backoff without end is not a loop without end", "[client][channel]") {
  for (const absl::Duration time : kEndless) {
    INFO(time);
    const auto channel = Channel::Create("127.0.0.1:1", ChannelOptions().set_backoff(time, time));
    test::Greeter::Stub stub(channel);
    const auto options = CallOptions().set_wait_for_ready(true).set_timeout(absl::Milliseconds(50));
    CHECK(absl::IsDeadlineExceeded(stub.SayHello(RequestFor("a"), options).Get().status()));
    CHECK(channel->status().state == ChannelStatus::State::kBackoff);
  }
}

TEST_CASE("trailing metadata that breaks the rules is the handler's mistake, and named",
          "[server][metadata]") {
  GreeterMock greeter;
  greeter.mock.on_SayHello = [&](ServerContext& context, const HelloRequest& request,
                                 HelloReply&) -> Task<absl::Status> {
    if (request.name() == "key") context.add_trailing_metadata("Upper Case", "x");
    if (request.name() == "value") context.add_trailing_metadata("text", "\x01");
    if (request.name() == "reserved") context.add_trailing_metadata("verbena-x", "x");
    if (request.name() == "many") {
      for (int i = 0; i < 100'000; ++i) context.add_trailing_metadata("k", "");
    }
    return absl::OkStatus();
  };
  for (const std::string& transport : TestTransports()) {
    testing::Loopback loop(greeter.mock, ChannelOptions().set_require_transport(transport));
    test::Greeter::Stub stub(loop.channel());
    const auto status_of = [&](const char* what) {
      return stub.SayHello(RequestFor(what)).Get().status();
    };
    const auto names = [&](const char* what, const char* words) {
      const absl::Status status = status_of(what);
      INFO(transport << ": " << status);
      CHECK(std::string(status.message()).find(words) != std::string::npos);
      return status.code();
    };
    CHECK(names("key", "Upper Case") == absl::StatusCode::kInternal);
    CHECK(names("value", "text") == absl::StatusCode::kInternal);
    CHECK(names("reserved", "verbena-x") == absl::StatusCode::kInternal);
    CHECK(names("many", "8192") == absl::StatusCode::kResourceExhausted);
    CHECK(status_of("none").ok());
  }
}

TEST_CASE("any number of metadata is refused by its size", "[client][metadata]") {
  GreeterMock greeter;
  testing::Loopback loop(greeter.mock);
  test::Greeter::Stub stub(loop.channel());
  for (const int count : {1'000, 100'000}) {
    CallOptions options;
    for (int i = 0; i < count; ++i) options.add_metadata("k", "");
    const absl::Status status = stub.SayHello(RequestFor("a"), options).Get().status();
    INFO(status);
    CHECK(absl::IsResourceExhausted(status));
    CHECK(std::string(status.message()).find("8192") != std::string::npos);
  }
}

TEST_CASE("a channel may end in the callback of its own call", "[client][lifetime]") {
  GreeterMock greeter;
  testing::Loopback loop(greeter.mock);
  for (int i = 0; i < 50; ++i) {
    auto channel = Channel::Create(loop.server().address());
    auto* stub = new test::Greeter::Stub(channel);
    std::atomic<bool> done{false};
    auto call = stub->SayHello(RequestFor("a"));
    std::move(call).Then(
        [&done, stub, last = std::move(channel)](absl::StatusOr<HelloReply> reply) mutable {
          CHECK(reply.ok());
          // Another one is on its way.
          stub->SayHello(RequestFor("b")).Detach();
          delete stub;
          last.reset();
          done = true;
        });
    REQUIRE(Eventually([&] { return done.load(); }));
  }
}

TEST_CASE("thousands of calls with deadlines wait for a server that is not there",
          "[client][deadline]") {
  constexpr int kCalls = 50'000;
  test::Greeter::Stub stub(Channel::Create("127.0.0.1:1"));
  std::atomic<int> ended{0}, late{0};
  const auto options = CallOptions().set_wait_for_ready(true).set_timeout(absl::Milliseconds(50));
  for (int i = 0; i < kCalls; ++i) {
    stub.SayHello(RequestFor("a"), options).Then([&](absl::StatusOr<HelloReply> reply) {
      late += absl::IsDeadlineExceeded(reply.status());
      ++ended;
    });
  }
  // Once it took a minute.
  for (int i = 0; i < 10'000 * kSlowdown && ended < kCalls; ++i) {
    absl::SleepFor(absl::Milliseconds(1));
  }
  REQUIRE(ended == kCalls);
  CHECK(late == kCalls);
}

TEST_CASE("tensors that are none are refused, and the field is named", "[client][parcel]") {
  Inference inference;
  Tensor given = FloatTensor({1, 2, 3, 4});
  Tensor moved = std::move(given);
  for (const bool default_made : {true, false}) {
    INFO(default_made);
    const Tensor& none = default_made ? Tensor() : given;  // NOLINT(bugprone-use-after-move)
    Parcel<test::InferRequest> parcel;
    parcel.Attach(*parcel->mutable_input(), none);
    const absl::Status status = inference.stub.Infer(std::move(parcel)).Get().status();
    INFO(status);
    CHECK(absl::IsFailedPrecondition(status));
    CHECK(std::string(status.message()).find("InferRequest.input: ") != std::string::npos);
    CHECK(std::string(status.message()).find("peer") == std::string::npos);
  }
  // Freed by its owner: the parcel has what it needs.
  Parcel<test::InferRequest> parcel;
  parcel.Attach(*parcel->mutable_input(), moved);
  moved = Tensor();
  CHECK(inference.stub.Infer(std::move(parcel)).Get().ok());
}

// ---- what has no answer: the process ends, and says why

// Catch's own handler of the signal allocates, which TSan reports instead of the abort.
void DieByAbort() { std::signal(SIGABRT, SIG_DFL); }

// A server that its own handler destroys.
void DestroyInHandler(const char* method) {
  DieByAbort();
  test::Greeter::Mock mock;
  std::unique_ptr<Server> server;
  mock.on_SayHello = [&](ServerContext&, const HelloRequest&, HelloReply&) -> Task<absl::Status> {
    server.reset();
    return absl::OkStatus();
  };
  mock.on_SlowHello = [&](ServerContext&, const HelloRequest&, HelloReply&) -> absl::Status {
    server.reset();
    return absl::OkStatus();
  };
  server = *Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(mock));
  test::Greeter::Stub stub(Channel::Create(server->address()));
  if (std::string(method) == "SayHello") {
    stub.SayHello(RequestFor("a")).Get().IgnoreError();
  } else {
    stub.SlowHello(RequestFor("a")).Get().IgnoreError();
  }
}
TEST_CASE("dies: a handler destroys its server", "[.]") {
  DestroyInHandler("SayHello");
  FAIL("it lives");
}
TEST_CASE("dies: a blocking handler destroys its server", "[.]") {
  DestroyInHandler("SlowHello");
  FAIL("it lives");
}
TEST_CASE("dies: a callback destroys a server", "[.]") {
  DieByAbort();
  GreeterMock greeter;
  auto server = *Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(greeter.mock));
  test::Greeter::Stub stub(Channel::Create(server->address()));
  stub.SayHello(RequestFor("a")).Then([&](absl::StatusOr<HelloReply>) { server.reset(); });
  absl::SleepFor(absl::Seconds(20));
  FAIL("it lives");
}

// This program again, with that case alone: what it wrote, after it was aborted.
std::string LastWordsOf(const std::string& test_case) {
  int out[2];
  REQUIRE(pipe(out) == 0);
  const pid_t child = fork();
  if (child == 0) {
    alarm(30);
    dup2(out[1], STDERR_FILENO);
    dup2(out[1], STDOUT_FILENO);
    execl("/proc/self/exe", "misuse", test_case.c_str(), nullptr);
    _exit(1);
  }
  close(out[1]);
  std::string words;
  char some[4096];
  for (ssize_t n; (n = read(out[0], some, sizeof some)) > 0;) {
    words.append(some, static_cast<size_t>(n));
  }
  close(out[0]);
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  INFO(words);
  CHECK(WIFSIGNALED(status));
  CHECK(WTERMSIG(status) == SIGABRT);
  return words;
}

TEST_CASE("who stops a server where its handlers run is told so", "[server][misuse]") {
  for (const char* who : {"a handler destroys its server", "a blocking handler destroys its server",
                          "a callback destroys a server"}) {
    INFO(who);
    const std::string words = LastWordsOf(absl::StrCat("dies: ", who));
    INFO(words);
    CHECK(words.find("a server cannot be stopped") != std::string::npos);
  }
}

}  // namespace
}  // namespace verbena
