// Servers: unknown methods, limits, details of statuses, drain and shutdown, blocking workers.
#include <stop_token>
#include <thread>
#include <vector>

#include "tests/client/fixture.h"

namespace verbena {
namespace {

using absl::Status;
using absl::StatusOr;
using test::HelloReply;
using test::HelloRequest;

TEST_CASE("an unknown method is UNIMPLEMENTED and named; the link goes on", "[server]") {
  Inference inference;
  test::Greeter::Stub wrong(inference.loop.channel());
  const Status status = wrong.SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kUnimplemented);
  REQUIRE(status.message().find("/test.Greeter/SayHello") != absl::string_view::npos);
  REQUIRE(inference.stub.Infer(InferParcel()).Get().ok());
}

TEST_CASE("a method that the service did not override is UNIMPLEMENTED", "[server]") {
  test::Greeter::Service plain;
  testing::Loopback loop(plain);
  test::Greeter::Stub stub(loop.channel());
  REQUIRE_CODE(stub.SayHello(RequestFor("a")).Get().status(), kUnimplemented);
  REQUIRE_CODE(stub.SlowHello(RequestFor("a")).Get().status(), kUnimplemented);
}

TEST_CASE("a status travels with its details", "[server]") {
  Greeter greeter;
  greeter.mock.on_SayHello = [](ServerContext&, const HelloRequest&, HelloReply&) -> Task<Status> {
    Status status = absl::NotFoundError("no such person");
    status.SetPayload("type.example/hint", absl::Cord("ask\0bob"));
    return status;
  };
  const Status status = greeter.stub.SayHello(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kNotFound);
  REQUIRE(status.message() == "no such person");
  REQUIRE(status.GetPayload("type.example/hint") == absl::Cord("ask\0bob"));
}

TEST_CASE("limits of a method and of the server are RESOURCE_EXHAUSTED and named", "[server]") {
  Greeter greeter;
  size_t reply_bytes = 10;
  auto handler = [&](ServerContext&, const HelloRequest&, HelloReply& reply) -> Task<Status> {
    reply.set_text(std::string(reply_bytes, 'r'));
    return absl::OkStatus();
  };
  greeter.mock.on_SmallOnly = handler;
  REQUIRE(greeter.stub.SmallOnly(RequestFor("a")).Get().ok());
  Status status = greeter.stub.SmallOnly(RequestFor(std::string(101, 'q'))).Get().status();
  REQUIRE_CODE(status, kResourceExhausted);
  REQUIRE(status.message().find("100") != absl::string_view::npos);
  reply_bytes = 300;
  status = greeter.stub.SmallOnly(RequestFor("a")).Get().status();
  REQUIRE_CODE(status, kResourceExhausted);
  REQUIRE(status.message().find("200") != absl::string_view::npos);

  // The server's own limit, for a client that does not know it.
  auto server = Server::Start(ServerOptions()
                                  .set_listen("127.0.0.1:0")
                                  .set_request_bytes_max(100000)
                                  .add_service(greeter.mock));
  REQUIRE(server.ok());
  test::Greeter::Stub stub(Channel::Create((*server)->address()));
  REQUIRE(stub.SayHello(RequestFor(std::string(90000, 'q'))).Get().ok());
  status = stub.SayHello(RequestFor(std::string(200000, 'q'))).Get().status();
  REQUIRE_CODE(status, kResourceExhausted);
  REQUIRE(status.message().find("100000") != absl::string_view::npos);
  REQUIRE(stub.SayHello(RequestFor("still alive")).Get().ok());
}

TEST_CASE("one method served twice, or one address, is refused", "[server]") {
  Greeter greeter;
  test::Greeter::Mock other;
  REQUIRE_CODE(
      Server::Start(
          ServerOptions().set_listen("127.0.0.1:0").add_service(greeter.mock).add_service(other))
          .status(),
      kAlreadyExists);
  const std::string& taken = greeter.loop.server().address();
  const Status status =
      Server::Start(ServerOptions().set_listen(taken).add_service(other)).status();
  REQUIRE_CODE(status, kAlreadyExists);
  REQUIRE(status.message().find(taken) != absl::string_view::npos);
}

TEST_CASE("options of a server that make no sense are refused with the value", "[server]") {
  const auto listen = [] { return ServerOptions().set_listen("127.0.0.1:0"); };
  struct Case {
    ServerOptions options;
    const char* words;
  };
  const Case cases[] = {
      {ServerOptions().set_listen("nonsense"), "\"nonsense\" is no address"},
      {ServerOptions(), "\"\" is no address"},
      {listen().set_worker_threads(0), "set_worker_threads(0): 1 to 4096"},
      {listen().set_worker_threads(5000), "set_worker_threads(5000)"},
      {listen().set_connections_max(0), "set_connections_max(0)"},
      {listen().set_handshake_timeout(absl::ZeroDuration()), "set_handshake_timeout(0)"},
      {listen().set_reply_lease_age_max(-absl::Seconds(1)), "set_reply_lease_age_max(-1s)"},
      {listen().set_request_bytes_max(uint64_t{1} << 31), "set_request_bytes_max(2147483648)"},
      {listen().set_transports({"shm", "no name"}), "\"no name\""},
      {listen().set_transports(std::vector<std::string>(9, "tcp")), "9 names; at most 8"},
      {listen().add_service(std::shared_ptr<Service>()), "add_service(nullptr)"},
  };
  for (const Case& bad : cases) {
    const Status status = Server::Start(bad.options).status();
    INFO(status.ToString());
    CHECK(status.code() == absl::StatusCode::kInvalidArgument);
    CHECK(status.message().find(bad.words) != absl::string_view::npos);
  }
  const Status missing = Server::Start(listen().set_transports({"carrier-pigeon"})).status();
  INFO(missing.ToString());
  REQUIRE_CODE(missing, kFailedPrecondition);
  REQUIRE(missing.message().find("carrier-pigeon") != absl::string_view::npos);
  REQUIRE(missing.message().find("tcp") != absl::string_view::npos);
  REQUIRE(Server::Start(listen().set_transports({"carrier-pigeon", "tcp"})).ok());
}

TEST_CASE("a stop callback may ask its call's context for its cancellation", "[server]") {
  Greeter greeter;
  std::atomic<bool> started{false}, seen{false};
  greeter.mock.on_SayHello = [&](ServerContext& context, const HelloRequest&,
                                 HelloReply&) -> Task<Status> {
    const std::stop_token token = context.cancellation();
    auto look = [&] { seen = context.cancellation().stop_requested(); };
    std::stop_callback callback(token, look);
    started = true;
    co_await context.Cancelled();
    co_return absl::OkStatus();
  };
  auto call = greeter.stub.SayHello(RequestFor("a"));
  REQUIRE(Eventually([&] { return started.load(); }));
  call.Cancel();
  REQUIRE(Eventually([&] { return seen.load(); }));
  REQUIRE_CODE(call.Get().status(), kCancelled);
}

TEST_CASE("shutdown ends running calls with UNAVAILABLE and waits for their handlers", "[server]") {
  test::Greeter::Mock mock;
  std::atomic<int> running{0}, ended{0};
  mock.on_SayHello = [&](ServerContext& context, const HelloRequest&, HelloReply&) -> Task<Status> {
    ++running;
    co_await context.Cancelled();
    ++ended;
    co_return absl::OkStatus();
  };
  auto server = *Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(mock));
  test::Greeter::Stub stub(Channel::Create(server->address()));
  std::vector<Call<HelloReply>> calls;
  for (int i = 0; i < 20; ++i) calls.push_back(stub.SayHello(RequestFor("a")));
  REQUIRE(Eventually([&] { return running == 20; }));
  server->Shutdown();
  REQUIRE(ended == 20);
  for (auto& call : calls) REQUIRE_CODE(call.Get().status(), kUnavailable);
}

TEST_CASE("drain lets running calls finish and refuses new ones", "[server]") {
  test::Greeter::Mock mock;
  std::atomic<int> running{0};
  mock.on_SayHello = [&](ServerContext& context, const HelloRequest&,
                         HelloReply& reply) -> Task<Status> {
    ++running;
    co_await context.Sleep(absl::Milliseconds(50));
    reply.set_text("done");
    co_return absl::OkStatus();
  };
  auto server = *Server::Start(ServerOptions().set_listen("127.0.0.1:0").add_service(mock));
  test::Greeter::Stub stub(Channel::Create(server->address()));
  auto call = stub.SayHello(RequestFor("a"));
  REQUIRE(Eventually([&] { return running == 1; }));
  std::thread drainer([&] { server->Drain(absl::Now() + absl::Seconds(10)); });
  REQUIRE(call.Get()->text() == "done");
  drainer.join();
  REQUIRE_CODE(stub.SayHello(RequestFor("b")).Get().status(), kUnavailable);
}

TEST_CASE("blocking handlers run at the same time, up to the workers, then are refused",
          "[server]") {
  test::Greeter::Mock mock;
  std::atomic<int> running{0}, most{0};
  std::atomic<bool> go{false};
  mock.on_SlowHello = [&](ServerContext&, const HelloRequest&, HelloReply&) -> Status {
    const int now = ++running;
    for (int seen = most; seen < now && !most.compare_exchange_weak(seen, now);) {
    }
    while (!go) absl::SleepFor(absl::Milliseconds(1));
    --running;
    return absl::OkStatus();
  };
  auto server = *Server::Start(
      ServerOptions().set_listen("127.0.0.1:0").set_worker_threads(3).add_service(mock));
  test::Greeter::Stub stub(Channel::Create(server->address()));
  std::vector<Call<HelloReply>> calls;
  for (int i = 0; i < 3 + 3 * 16 + 10; ++i) calls.push_back(stub.SlowHello(RequestFor("a")));
  REQUIRE(Eventually([&] { return most == 3; }));
  REQUIRE(Eventually([&] { return calls.back().done(); }));
  go = true;
  int good = 0, refused = 0;
  for (auto& call : calls) {
    const Status status = call.Get().status();
    good += status.ok();
    refused += status.code() == absl::StatusCode::kResourceExhausted;
  }
  REQUIRE(good + refused == 61);
  REQUIRE(good >= 48);
  REQUIRE(refused >= 1);
  REQUIRE(most == 3);
}

}  // namespace
}  // namespace verbena
