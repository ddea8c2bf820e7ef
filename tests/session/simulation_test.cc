// Everything at once, from a seed: calls with and without payloads, cancels, deadlines, fetches,
// late and lost frames and READs, broken lanes, and in some runs the death of the link. Whatever
// happens, each call and each fetch ends once, and all leases come back.
#include <algorithm>
#include <deque>
#include <random>
#include <thread>

#include "rpc/base/log.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {
namespace {

class Simulation {
 public:
  explicit Simulation(uint32_t seed) : random(seed), pair(Network(seed), Options(), 32) {
    SetLogSink([](LogLevel, absl::string_view) {});
    REQUIRE(pair.Connect().ok());
    memory = Pair::Pattern(400'000, seed);
  }
  ~Simulation() { SetLogSink({}); }

  static fabric::sim::NetworkOptions Network(uint32_t seed) {
    fabric::sim::NetworkOptions options;
    options.seed = seed;
    options.prepares_lanes = seed % 3 != 0;
    options.segment_bytes = 1'024 << seed % 3;
    options.slot_bytes = 64 << seed % 4;
    options.window_slots = 64;
    options.send_buffers = 2 + seed % 6;
    if (seed % 2 != 0) options.copied_bytes = 128 << seed % 4;
    options.gathers_sends = seed % 4 == 1;
    options.read_chunk_bytes = 4'096;
    if (seed % 5 == 1) options.revocation = fabric::Revocation::kLane;
    return options;
  }
  static EngineOptions Options() {
    EngineOptions options;
    options.reply_lease_age_max = absl::Milliseconds(30);
    options.announced_bytes_max = 2'000'000;
    options.fetching_bytes_max = 1'000'000;
    return options;
  }

  void Step() {
    switch (random() % 12) {
      case 0:
      case 1:
      case 2:
        StartCall();
        break;
      case 3:
        CancelOne();
        break;
      case 4:
      case 5:
      case 6:
        AnswerOne();
        break;
      case 7:
        FetchOne();
        break;
      case 8:
        ReleaseOne();
        break;
      default:
        break;
    }
    for (size_t i = random() % 8; i > 0; --i) pair.Tick();
    if (random() % 50 == 0) pair.network.Advance(static_cast<int64_t>(random() % 2'000'000));
  }

  void StartCall() {
    if (pair.owner.link == nullptr) return;
    TestCall& call = calls.emplace_back(random() % 3 == 0 ? "/test/Echo" : "/test/Hold");
    if (random() % 3 == 0) {
      call.deadline_ns =
          pair.client->reactor().now_ns() + static_cast<int64_t>(random() % 3'000'000);
    }
    OutgoingPayload payloads[2];
    Outgoing request;
    const size_t body = random() % 3 == 0 ? random() % 60'000 : random() % 100;
    request.body = {memory.data() + random() % 1'000, body};
    if (random() % 2 == 0) request.body_region = memory.region();
    if (random() % 2 == 0) {
      for (OutgoingPayload& payload : payloads) {
        payload = {random(), memory.region(), memory.data(), random() % 100'000};
      }
      request.payloads = payloads;
    }
    pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
  }
  void CancelOne() {
    if (calls.empty() || pair.owner.link == nullptr) return;
    TestCall& call = calls[random() % calls.size()];
    if (call.done()) return;
    pair.OnClient([&] { pair.owner.link->CancelCall(call, absl::CancelledError("")); });
  }
  void AnswerOne() {
    for (; answered < pair.sink.served.size() && pair.sink.served[answered].method == "/test/Echo";
         ++answered) {
    }
    if (answered >= pair.sink.served.size()) return;
    TestServed& served = pair.sink.served[answered++];
    Outgoing reply;
    OutgoingPayload payload{random(), memory.region(), memory.data(), random() % 100'000};
    if (random() % 2 == 0) reply.payloads = {&payload, 1};
    reply.body = {memory.data(), random() % 4 == 0 ? random() % 50'000 : random() % 64};
    if (random() % 2 == 0) reply.body_region = memory.region();
    const absl::Status status = random() % 8 == 0 ? absl::AbortedError("no") : absl::OkStatus();
    pair.OnServer([&] { served.link->Reply(served, status, reply); });
  }
  void Fetch(PayloadSet& set) {
    TestFetch& fetch = fetches.emplace_back();
    fetch.entry = 0;
    const uint64_t bytes = set.entries()[0].bytes;
    if (bytes == 0) {
      fetches.pop_back();
      return;
    }
    blocks.push_back(*memory::AllocateBlock(bytes));
    fetch.pieces.push_back({&memory::HostDevice(), blocks.back().data(), bytes});
    fetch.destination_lent = random() % 2 == 0;
    if (random() % 4 == 0) {
      fetch.deadline_ns =
          Link::EngineOf(set).reactor().now_ns() + static_cast<int64_t>(random() % 500'000);
    }
    Pair::InSeat(Link::EngineOf(set).reactor(), [&] { Link::StartFetch(set, fetch); });
  }
  void FetchOne() {
    if (random() % 2 == 0 && !calls.empty()) {
      const TestCall& call =
          calls[calls.size() - 1 - random() % std::min<size_t>(calls.size(), 20)];
      if (call.payloads != nullptr) Fetch(*call.payloads);
    } else if (!pair.sink.served.empty()) {
      const size_t recent = std::min<size_t>(pair.sink.served.size(), 20);
      const TestServed& served = pair.sink.served[pair.sink.served.size() - 1 - random() % recent];
      if (served.payloads != nullptr) Fetch(*served.payloads);
    }
  }
  void ReleaseOne() {
    if (calls.empty()) return;
    TestCall& call = calls[random() % calls.size()];
    if (call.payloads == nullptr) return;
    if (random() % 2 == 0) {
      call.payloads->Release();
    } else {
      call.payloads.reset();
    }
  }

  void Finish() {
    pair.network.SetFaults({});
    const bool ended = [&] {
      for (int i = 0; i < 3'000; ++i) {
        AnswerOne();
        pair.RunFor(10'000'000);
        if (answered == pair.sink.served.size() && pair.client->counters().calls_live == 0 &&
            pair.server->counters().calls_live == 0 && pair.client->counters().fetches_live == 0 &&
            pair.server->counters().fetches_live == 0) {
          return true;
        }
        std::this_thread::yield();
      }
      return false;
    }();
    CHECK(ended);
    for (const TestCall& call : calls) CHECK(call.replies == 1);
    for (const TestFetch& fetch : fetches) CHECK(fetch.times == 1);
    for (const TestServed& served : pair.sink.served) CHECK(served.ended == 1);
    for (TestCall& call : calls) call.payloads.reset();
    for (TestServed& served : pair.sink.served) served.payloads.reset();
    pair.RunFor(2'000'000);
    CHECK(pair.client->counters().leases_live == 0);
    CHECK(pair.server->counters().leases_live == 0);
    CHECK(pair.network.statistics().overruns == 0);
  }

  std::mt19937_64 random;
  memory::Block memory;
  std::deque<TestCall> calls;
  std::deque<TestFetch> fetches;
  std::deque<memory::Block> blocks;
  size_t answered = 0;
  Pair pair;  // dies first
};

TEST_CASE("whatever happens, every call and fetch ends once and every lease comes back",
          "[session][simulation]") {
  const uint32_t seed = GENERATE(range(1u, 41u));
  INFO("seed " << seed);
  Simulation simulation(seed);
  fabric::sim::Faults faults;
  faults.frame_late = 0.02;
  if (seed % 2 == 0) faults.read_lost = 0.002;
  if (seed % 4 == 1) faults.read_breaks_lane = 0.001;
  if (seed % 7 == 0) faults.lease_refused = 0.05;
  simulation.pair.network.SetFaults(faults);
  const int steps = 1'500;
  for (int i = 0; i < steps; ++i) {
    simulation.Step();
    if (seed % 6 == 5 && i == steps / 2) {
      simulation.pair.network.CutLink(*simulation.pair.client_fabric, simulation.pair.client_id);
    }
  }
  simulation.Finish();
}

}  // namespace
}  // namespace verbena::session::testing
