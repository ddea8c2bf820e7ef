// The handshake with the engine and the fabrics that users get.
#include <chrono>
#include <thread>

#include "rpc/fabric/available.h"
#include "rpc/memory/device.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/bootstrap.h"
#include "tests/catch.h"
#include "tests/session/bootstrap_fakes.h"
#include "tests/session/full_pool.h"
#include "tests/transports.h"

namespace verbena::session {
namespace {

struct RealEngine {
  RealEngine() {
    reactor::ReactorOptions options;
    options.pin = false;
    reactor = reactor::Reactor::Create(options).value();
    fabric::FabricOptions fabrics;
    fabrics.host = &memory::HostDevice();
    fabrics.post_setup = [](absl::AnyInvocable<void() &&> job) {
      reactor::PostSetup(std::move(job));
    };
    engine = Engine::Create(*reactor, fabric::MakeFabrics(fabrics), EngineOptions());
  }
  ~RealEngine() { SettleServiceThreads(); }
  std::unique_ptr<reactor::Reactor> reactor;
  std::unique_ptr<Engine> engine;
};

void CloseAll(RealEngine& real) {
  while (!real.reactor->TryEnter()) std::this_thread::yield();
  for (Link* link : real.engine->Links()) link->Close(absl::UnavailableError("the test ends"));
  real.reactor->Leave();
}

}  // namespace

TEST_CASE("real fabrics are set up and proved by the real engine", "[bootstrap][real]") {
  FakeSink sink;
  FakeOwner owner;
  RealEngine server, client;
  ListenOptions listen;
  listen.address = "127.0.0.1:0";
  auto listener = Listener::Listen(listen, {server.engine.get()}, sink).value();
  ConnectOptions options;
  options.address = listener->address();
  for (const std::string& name : TestTransports()) {
    if (client.engine->FindFabric(name) == nullptr) continue;
    options.transports = {name};
    const absl::StatusOr<Link*> link = ConnectNow(*client.engine, options, owner);
    INFO(link.status());
    REQUIRE(link.ok());
    CHECK((*link)->info().transport == name);
  }
  CHECK(Eventually([&] { return sink.up == owner.up; }));
  listener.reset();
  const int links = owner.up;
  CloseAll(client);
  CHECK(Eventually([&] { return owner.down == links && sink.down == links; }));
}

TEST_CASE("memory that takes longer to make than a proof may take does not end the handshake",
          "[bootstrap][real]") {
  FakeSink sink;
  FakeOwner owner;
  RealEngine server, client;
  ListenOptions listen;
  listen.address = "127.0.0.1:0";
  listen.handshake_timeout = EngineOptions().prove_timeout * 4;
  auto listener = Listener::Listen(listen, {server.engine.get()}, sink).value();
  ConnectOptions options;
  options.address = listener->address();
  options.timeout = EngineOptions().prove_timeout * 8;
  const auto until = std::chrono::steady_clock::now() +
                     absl::ToChronoMilliseconds(EngineOptions().prove_timeout * 1.3);
  const testing::FullPool full([until] { return std::chrono::steady_clock::now() >= until; });
  const absl::StatusOr<Link*> link = ConnectNow(*client.engine, options, owner);
  INFO(link.status());
  CHECK(link.ok());
  CHECK(std::chrono::steady_clock::now() >= until);
  listener.reset();
  CloseAll(client);
  CHECK(Eventually([&] { return owner.down == owner.up && sink.down == sink.up; }));
}

}  // namespace verbena::session
