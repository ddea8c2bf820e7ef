#include <algorithm>

#include "rpc/fabric/sim/network.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"

namespace verbena::contract {
namespace {

using fabric::sim::Faults;
using fabric::sim::Network;
using fabric::sim::NetworkOptions;

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};

Subject On(const std::shared_ptr<Network>& network) {
  Subject subject;
  subject.name = "sim";
  subject.make = [network](auto& client, auto& server, std::shared_ptr<void>& keep) {
    client = network->MakeEndpoint();
    server = network->MakeEndpoint();
    keep = network;
  };
  return subject;
}

struct Fixture {
  explicit Fixture(const NetworkOptions& options = {})
      : network(std::make_shared<Network>(options)), subject(On(network)), pair(subject) {
    pair.Connect(kLink);
    pair.OpenLane(kLink, 0, pair.client());
    region = MakeHeapRegion(1 << 16);
    Fill(region->base(), region->bytes(), 1);
    key = LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, region, 0,
                   1 << 16);
    into.resize(1 << 16);
  }
  void Read(uint32_t slot, uint64_t offset, size_t bytes) {
    const fabric::LocalPiece piece{&PlainDevice(), into.data() + offset, bytes};
    pair.client().Read({slot, 1}, kLink, kReader, key, offset, {&piece, 1});
  }
  std::vector<Error>& reads(uint32_t slot) {
    return pair.client_events.reads[ReadSlot{slot, 1}.word()];
  }

  std::shared_ptr<Network> network;
  Subject subject;
  Pair pair;
  memory::RegionRef region;
  fabric::RemoteKey key;
  std::vector<std::byte> into;
};

TEST_CASE("a sender beyond the window takes the link down and is named", "[sim]") {
  NetworkOptions options;
  options.window_slots = 8;
  options.send_buffers = 64;
  Fixture f(options);
  for (uint32_t i = 0; i < 9; ++i) SendFrame(f.pair.client(), kLink, 512, i);
  REQUIRE(f.pair.Until([&] { return !f.pair.server_events.down[kLink].empty(); }));
  const absl::Status cause = f.pair.server_events.down[kLink][0];
  REQUIRE(cause.code() == absl::StatusCode::kResourceExhausted);
  REQUIRE(std::string(cause.message()).find("window 8") != std::string::npos);
  REQUIRE(f.network->statistics().overruns == 1);
}

TEST_CASE("a lost READ is answered when its lane is broken", "[sim]") {
  Fixture f;
  f.network->SetFaults({.read_lost = 1});
  f.Read(1, 0, 4096);
  f.pair.Settle(std::chrono::milliseconds(5));
  REQUIRE(f.reads(1).empty());
  f.pair.client().BreakLane(kLink, kReader);
  REQUIRE(f.pair.Until([&] { return f.reads(1).size() == 1; }));
  REQUIRE(f.reads(1)[0] == Error::kLaneDown);
}

TEST_CASE("a READ refused by its key breaks the lane, and the others are flushed", "[sim]") {
  Fixture f;
  f.network->SetFaults({.hold_reads = true});
  const fabric::LocalPiece piece{&PlainDevice(), f.into.data(), 64};
  f.pair.client().Read({1, 1}, kLink, kReader, fabric::RemoteKey(), 0, {&piece, 1});
  f.network->SetFaults({.read_lost = 1});
  f.Read(2, 0, 4096);
  f.network->SetFaults({});
  REQUIRE(f.pair.Until([&] { return !f.pair.client_events.lanes_down[kLink].empty(); }));
  REQUIRE(f.reads(1) == std::vector<Error>{Error::kLeaseLost});
  REQUIRE(f.reads(2) == std::vector<Error>{Error::kLaneDown});
  REQUIRE(f.pair.client_events.down[kLink].empty());
}

TEST_CASE("READs finish in another order than they were posted", "[sim]") {
  Fixture f;
  std::vector<uint32_t> order;
  for (uint32_t i = 0; i < 32; ++i) f.Read(i, i * 64, 64);
  for (int polls = 0; polls < 1000 && order.size() < 32; ++polls) {
    f.pair.PollOnce();
    for (uint32_t i = 0; i < 32; ++i) {
      const bool known = std::find(order.begin(), order.end(), i) != order.end();
      if (!f.reads(i).empty() && !known) order.push_back(i);
    }
  }
  REQUIRE(order.size() == 32);
  REQUIRE_FALSE(std::is_sorted(order.begin(), order.end()));
}

TEST_CASE("revocation by lane takes the owner's end down, and READs there fail", "[sim]") {
  NetworkOptions options;
  options.revocation = fabric::Revocation::kLane;
  Fixture f(options);
  f.pair.server().Revoke({1, 1});
  REQUIRE(f.pair.Until([&] { return !f.pair.server_events.lanes_down[kLink].empty(); }));
  f.Read(1, 0, 64);
  REQUIRE(f.pair.Until([&] { return f.reads(1).size() == 1; }));
  REQUIRE(f.reads(1)[0] == Error::kLaneDown);
  REQUIRE(f.pair.Until([&] { return !f.pair.client_events.lanes_down[kLink].empty(); }));
}

TEST_CASE("a killed endpoint is silent, and its peers' links go down", "[sim]") {
  Fixture f;
  f.Read(1, 0, 4096);
  f.network->Kill(f.pair.server());
  REQUIRE(f.pair.Until([&] { return !f.pair.client_events.down[kLink].empty(); }));
  REQUIRE(f.reads(1).size() == 1);
  REQUIRE(f.pair.server_events.down[kLink].empty());
}

TEST_CASE("a seed gives the same run again", "[sim]") {
  auto run = [](uint64_t seed) {
    NetworkOptions options;
    options.seed = seed;
    Fixture f(options);
    f.network->SetFaults({.read_breaks_lane = 0.1});
    std::vector<uint64_t> trace;
    for (uint32_t i = 0; i < 64; ++i) f.Read(i, 0, 64);
    for (int i = 0; i < 200; ++i) f.pair.PollOnce();
    for (uint32_t i = 0; i < 64; ++i) {
      trace.push_back(f.reads(i).empty() ? 99 : static_cast<uint64_t>(f.reads(i)[0]));
    }
    return trace;
  };
  REQUIRE(run(5) == run(5));
  REQUIRE(run(5) != run(6));
}

}  // namespace
}  // namespace verbena::contract
