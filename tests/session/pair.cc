#include "tests/session/pair.h"

#include <chrono>
#include <random>
#include <thread>

#include "tests/catch.h"

namespace verbena::session::testing {
namespace {

std::vector<std::pair<std::string, std::string>> Copy(MetadataView metadata) {
  std::vector<std::pair<std::string, std::string>> pairs;
  for (const auto& [key, value] : metadata)
    pairs.emplace_back(std::string(key), std::string(value));
  return pairs;
}

std::unique_ptr<reactor::Reactor> MakeReactor(fabric::sim::Network& network) {
  reactor::ReactorOptions options;
  options.thread = false;
  options.pin = false;
  options.clock = [&network] { return network.now_ns() + 1'000'000; };
  auto reactor = reactor::Reactor::Create(options);
  REQUIRE(reactor.ok());
  return *std::move(reactor);
}

}  // namespace

void TestCall::OnReply(ReplyView& reply) {
  ++replies;
  status = *reply.status;
  body = Text(reply.body);
  body_was_read = static_cast<bool>(reply.body_block);
  payloads = reply.payloads;
  metadata = Copy(reply.trailing_metadata);
  if (then) then();
}

void* TestSink::Resolve(absl::string_view path) {
  if (path == "/test/Echo") return reinterpret_cast<void*>(1);
  if (path == "/test/Hold") return reinterpret_cast<void*>(2);
  return nullptr;
}

ServerCall* TestSink::OnRequest(Link& from, RequestView& request) {
  ++requests;
  const bool echo = request.method_cookie == reinterpret_cast<void*>(1);
  TestServed& call = served.emplace_back();
  call.link = &from;
  call.method = std::string(request.method);
  call.body = Text(request.body);
  call.body_was_read = static_cast<bool>(request.body_block);
  call.deadline_ns = request.deadline_ns;
  call.payloads = request.payloads;
  call.metadata = Copy(request.metadata);
  if (echo) {
    Outgoing reply;
    reply.body = request.body;
    reply.metadata = request.metadata;
    from.Reply(call, absl::OkStatus(), reply);
  }
  return &call;
}

Pair::Pair(const fabric::sim::NetworkOptions& network_options, const EngineOptions& options,
           uint32_t open_calls_max)
    : network(network_options), open_calls_max_(open_calls_max) {
  client_reactor = MakeReactor(network);
  server_reactor = MakeReactor(network);
  std::vector<std::unique_ptr<fabric::Fabric>> mine;
  mine.push_back(network.MakeEndpoint());
  client_fabric = mine[0].get();
  client = Engine::Create(*client_reactor, std::move(mine), options);
  std::vector<std::unique_ptr<fabric::Fabric>> theirs;
  theirs.push_back(network.MakeEndpoint());
  server_fabric = theirs[0].get();
  server = Engine::Create(*server_reactor, std::move(theirs), options);
}

Pair::~Pair() {
  OnClient([this] {
    if (owner.link != nullptr) owner.link->Close(absl::CancelledError("the test is over"));
  });
  OnServer([this] {
    if (sink.link != nullptr) sink.link->Close(absl::CancelledError("the test is over"));
  });
  const auto answered = [this] {
    return client->counters().calls_live == 0 && server->counters().calls_live == 0 &&
           owner.link == nullptr && sink.link == nullptr;
  };
  Run(answered, 50'000);
  CHECK(owner.link == nullptr);
  CHECK(sink.link == nullptr);
  CHECK(client->counters().leases_live == 0);
  CHECK(server->counters().leases_live == 0);
  CHECK(client->counters().fetches_live == 0);
  CHECK(server->counters().fetches_live == 0);
}

absl::Status Pair::Connect(RequestSink* of_server) {
  client_id = *client->ReserveLink();
  server_id = *server->ReserveLink();
  fabric::Sockets none;
  absl::StatusOr<fabric::Offer> a = client_fabric->Prepare(client_id, fabric::Side::kClient, "");
  absl::StatusOr<fabric::Offer> b =
      server_fabric->Prepare(server_id, fabric::Side::kServer, a->blob);
  REQUIRE(a.ok());
  REQUIRE(b.ok());
  REQUIRE(server_fabric->Complete(server_id, *a, none).ok());
  REQUIRE(client_fabric->Complete(client_id, *b, none).ok());
  LinkSetup setup;
  setup.open_calls_max = open_calls_max_;
  setup.info.transport = "sim";
  setup.info.peer = "the other end";
  setup.fabric = server_fabric;
  setup.id = server_id;
  setup.side = fabric::Side::kServer;
  int told = 0;
  OnServer([&] {
    RequestSink* const to = of_server == nullptr ? &sink : of_server;
    server->Adopt(setup, nullptr, to, [&](absl::StatusOr<Link*> link) {
      server_link = link;
      ++told;
    });
  });
  setup.fabric = client_fabric;
  setup.id = client_id;
  setup.side = fabric::Side::kClient;
  OnClient([&] {
    client->Adopt(setup, &owner, nullptr, [&](absl::StatusOr<Link*> link) {
      client_link = link;
      ++told;
    });
  });
  Run([&] { return told == 2; }, 100'000);
  if (!client_link.ok()) return client_link.status();
  return server_link.status();
}

void Pair::InSeat(reactor::Reactor& reactor, const std::function<void()>& f) {
  REQUIRE(reactor.TryEnter());
  f();
  reactor.Leave();
}

void Pair::Tick() {
  client_reactor->Tick();
  server_reactor->Tick();
}

bool Pair::Run(const std::function<bool()>& done, int ticks) {
  for (int i = 0; i < ticks && !done(); ++i) {
    Tick();
    // The setup thread is a real one.
    if (i % 64 == 63) std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  return done();
}

void Pair::RunFor(int64_t ns) {
  const int64_t until = network.now_ns() + ns;
  while (network.now_ns() < until) {
    network.Advance(std::min<int64_t>(until - network.now_ns(), 100'000));
    Tick();
  }
}

memory::Block Pair::Pattern(size_t bytes, uint64_t seed) {
  absl::StatusOr<memory::Block> block = memory::AllocateBlock(bytes);
  REQUIRE(block.ok());
  std::mt19937_64 random(seed);
  for (size_t i = 0; i < bytes; ++i) block->data()[i] = static_cast<std::byte>(random());
  return *std::move(block);
}

}  // namespace verbena::session::testing
