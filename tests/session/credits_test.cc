#include <deque>
#include <random>

#include "rpc/session/credit_ledger.h"
#include "rpc/session/record_queue.h"
#include "rpc/wire/control.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {
namespace {

TEST_CASE("data stops two control frames short of the window, control one, a grant at the end",
          "[session][credits]") {
  CreditLedger ledger(64, 16);
  CHECK(ledger.FrameBytesMax(SendClass::kData) == 14 * 64);
  ledger.OnSent(14 * 64);
  CHECK(ledger.FrameBytesMax(SendClass::kData) == 0);
  CHECK(ledger.FrameBytesMax(SendClass::kControl) == 64);
  ledger.OnSent(64);
  CHECK(ledger.FrameBytesMax(SendClass::kControl) == 0);
  CHECK(ledger.FrameBytesMax(SendClass::kGrant) == 64);
}

TEST_CASE("a grant is due when half of the window was consumed, not merely received",
          "[session][credits]") {
  CreditLedger ledger(64, 16);
  REQUIRE(ledger.OnReceived(8 * 64));
  CHECK_FALSE(ledger.GrantDue());
  ledger.OnConsumed();
  CHECK(ledger.GrantDue());
  CHECK(ledger.TakeGrant() == 24);
  CHECK_FALSE(ledger.GrantDue());
}

TEST_CASE("what a peer may not do with credits is seen", "[session][credits]") {
  CreditLedger ledger(64, 16);
  CHECK(ledger.OnReceived(16 * 64));
  CHECK_FALSE(ledger.OnReceived(1));  // beyond the window
  CreditLedger other(64, 16);
  CHECK_FALSE(other.OnPeerGranted(15));  // takes one back
  CHECK_FALSE(other.OnPeerGranted(17));  // more than its window
  other.OnSent(64);
  CHECK(other.OnPeerGranted(17));
}

TEST_CASE("counters wrap", "[session][credits]") {
  CreditLedger ledger(64, 16);
  CreditLedger peer(64, 16);
  for (uint64_t i = 0; i < (uint64_t{1} << 33) / 14; i += 100'000) {
    // Jumps: 14 slots there and granted back, many times over.
    ledger.OnSent(14 * 64);
    REQUIRE(peer.OnReceived(14 * 64));
    peer.OnConsumed();
    REQUIRE(ledger.OnPeerGranted(peer.TakeGrant()));
    REQUIRE(ledger.available() == 16);
  }
}

// Two sides that send as fast as their credits allow, data and control at random; frames are
// delayed at random. Whatever happens, each always gets to send data again.
TEST_CASE("both sides at zero never deadlock", "[session][credits]") {
  const uint32_t seed = GENERATE(range(1u, 60u));
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const uint32_t slot = 64u << random() % 4;
  const uint32_t control = (wire::kControlFrameBytes + slot - 1) / slot;
  const uint32_t window = 8 * control + static_cast<uint32_t>(random() % 40);
  struct Side {
    Side(uint32_t s, uint32_t w) : ledger(s, w) {}
    CreditLedger ledger;
    std::deque<std::pair<uint32_t, uint32_t>> inbox;  // bytes, grant
    uint64_t data = 0;
  };
  Side sides[2] = {Side(slot, window), Side(slot, window)};
  const auto send = [&](Side& from, Side& to, uint32_t bytes) {
    const uint32_t grant = from.ledger.TakeGrant();
    from.ledger.OnSent(bytes);
    to.inbox.emplace_back(bytes, grant);
  };
  uint64_t last[2] = {0, 0};
  for (int step = 0; step < 20'000; ++step) {
    Side& me = sides[random() % 2];
    Side& peer = &me == &sides[0] ? sides[1] : sides[0];
    const uint32_t most = me.ledger.FrameBytesMax(SendClass::kData);
    if (random() % 3 != 0) {
      const uint32_t wanted = std::min<uint32_t>(me.ledger.FrameBytesAlways(),
                                                 static_cast<uint32_t>(8 + random() % (4 * slot)));
      if (wanted <= most) {
        send(me, peer, wanted);
        ++me.data;
      }
    } else if (me.ledger.FrameBytesMax(SendClass::kControl) >= wire::kControlFrameBytes) {
      send(me, peer, wire::kControlFrameBytes);
    }
    if (random() % 2 == 0 && !me.inbox.empty()) {
      const auto [bytes, grant] = me.inbox.front();
      me.inbox.pop_front();
      REQUIRE(me.ledger.OnReceived(bytes));
      REQUIRE(me.ledger.OnPeerGranted(grant));
      me.ledger.OnConsumed();
    }
    if (me.ledger.GrantDue() && me.ledger.FrameBytesMax(SendClass::kGrant) >= 8) send(me, peer, 8);
    if (step % 2'000 == 1'999) {
      for (int i = 0; i < 2; ++i) {
        REQUIRE(sides[i].data > last[i]);
        last[i] = sides[i].data;
      }
    }
  }
}

TEST_CASE("a queue of records that never runs empty does not grow", "[session][credits]") {
  RecordQueue queue;
  std::vector<std::byte> record(16);
  uint32_t pushed = 0, popped = 0;
  for (int i = 0; i < 1'000'000; ++i) {
    while (pushed < popped + 10) {
      wire::WriteLease(wire::RecordType::kRelease, pushed++, true, record.data());
      queue.Push(record);
    }
    REQUIRE(wire::Load<uint64_t>(queue.front().data() + 8) == popped++);
    queue.Pop();
    REQUIRE_FALSE(queue.empty());
  }
  CHECK(queue.capacity() < 64 << 10);
}

TEST_CASE("thousands of calls at once through a small window all come back", "[session][credits]") {
  fabric::sim::NetworkOptions network;
  network.window_slots = GENERATE(16u, 64u);
  network.slot_bytes = 64;
  network.segment_bytes = 1024;
  network.send_buffers = 2;
  network.seed = 5;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  constexpr int kCalls = 20'000;
  std::deque<TestCall> calls;
  const std::string body(200, 'b');
  int replies = 0;
  pair.OnClient([&] {
    for (int i = 0; i < kCalls; ++i) {
      TestCall& call = calls.emplace_back("/test/Echo");
      call.then = [&replies] { ++replies; };
      Outgoing request;
      request.body = Bytes(body);
      pair.owner.link->StartCall(call, request);
    }
  });
  CHECK(pair.client->counters().calls_live == kCalls);
  REQUIRE(pair.Run([&] { return replies == kCalls; }, 4000000));
  for (const TestCall& call : calls) {
    REQUIRE(call.replies == 1);
    REQUIRE(call.status.ok());
    REQUIRE(call.body == body);
  }
  CHECK(pair.network.statistics().overruns == 0);
  CHECK(pair.client->counters().credit_stalls > 0);
  CHECK(pair.owner.link->tally().credit_stalls == pair.client->counters().credit_stalls);
}

TEST_CASE("the calls of a tick share a frame that has outgrown what is copied",
          "[session][credits]") {
  fabric::sim::NetworkOptions network;
  network.copied_bytes = 216;
  network.gathers_sends = true;
  network.publish_bytes = network.segment_bytes;
  Pair pair(network);
  REQUIRE(pair.Connect().ok());
  std::deque<TestCall> calls;
  const auto frames_of = [&](int count, size_t bytes) {
    const uint64_t before = pair.client->counters().frames_sent;
    pair.OnClient([&] {
      for (int i = 0; i < count; ++i) {
        const std::string body(bytes, static_cast<char>('a' + i));
        Outgoing request;
        request.body = Bytes(body);
        pair.owner.link->StartCall(calls.emplace_back("/test/Echo"), request);
      }
    });
    REQUIRE(pair.Run([&] { return calls.back().done(); }));
    for (int i = 0; i < count; ++i) {
      const TestCall& call = calls[calls.size() - static_cast<size_t>(count - i)];
      REQUIRE(call.status.ok());
      REQUIRE(call.body == std::string(bytes, static_cast<char>('a' + i)));
    }
    return pair.client->counters().frames_sent - before;
  };
  frames_of(1, 64);  // names the method
  CHECK(frames_of(1, 64) == 1);
  CHECK(frames_of(20, 64) == 1);
  CHECK(frames_of(1, 4000) == 1);
  // Two of these do not fit any frame together.
  CHECK(frames_of(2, 5000) == 2);
}

}  // namespace
}  // namespace verbena::session::testing
