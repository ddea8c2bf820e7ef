#include <vector>

#include "tests/contract/fabric_contract.h"
#include "tests/contract/plain_device.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{5};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};

bool ByLane(const fabric::Fabric& fabric) {
  return fabric.traits().revocation == fabric::Revocation::kLane;
}

// The server owns, the client reads.
struct Fixture {
  explicit Fixture(const Subject& subject) : pair(subject) {
    pair.Connect(kLink);
    pair.OpenLane(kLink, 0, pair.client());
    destination.resize(1 << 20);
  }

  fabric::RemoteKey Lease(LeaseSlot slot, const memory::RegionRef& region, size_t offset,
                          size_t bytes) {
    return LeaseNow(pair, pair.server(), pair.server_events, slot, kLink, kOwner, region, offset,
                    bytes);
  }
  void Read(ReadSlot slot, const fabric::RemoteKey& key, uint64_t offset, size_t bytes,
            Lane lane = kReader) {
    const fabric::LocalPiece piece{&PlainDevice(), destination.data(), bytes};
    pair.client().Read(slot, kLink, lane, key, offset, {&piece, 1});
    REQUIRE(pair.client_events.reads[slot.word()].empty());  // never inline
  }
  Error Done(ReadSlot slot) {
    auto& answers = pair.client_events.reads[slot.word()];
    REQUIRE(pair.Until([&] { return !answers.empty(); }));
    pair.Settle(std::chrono::milliseconds(1));
    REQUIRE(answers.size() == 1);
    return answers[0];
  }
  void Ended(LeaseSlot slot, bool by_force) {
    if (by_force) {
      pair.server().Revoke(slot);
    } else {
      pair.server().Release(slot);
    }
    REQUIRE(pair.Until([&] { return pair.server_events.revoked[slot.word()] > 0; }));
    pair.Settle(std::chrono::milliseconds(1));
    REQUIRE(pair.server_events.revoked[slot.word()] == 1);
  }
  void Revoked(LeaseSlot slot) { Ended(slot, true); }
  void BreakBothEnds(uint32_t generation) {
    pair.server().BreakLane(kLink, {0, LaneRole::kOwner, generation});
    pair.client().BreakLane(kLink, {0, LaneRole::kReader, generation});
  }
  bool LanesDown(size_t times) {
    return pair.Until([&] {
      return pair.server_events.lanes_down[kLink].size() == times &&
             pair.client_events.lanes_down[kLink].size() == times;
    });
  }

  Pair pair;
  std::vector<std::byte> destination;
};

TEST_CASE("a lease is read whole, in part and in pieces", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  for (const bool slab : {true, false}) {
    INFO("slab " << slab);
    Fixture f(subject);
    const size_t chunk = f.pair.client().traits().read_chunk_bytes;
    const size_t bytes = 3 * chunk + 1000;
    const memory::RegionRef region = slab ? MakeSlab(bytes + 100) : MakeForeign(bytes + 100);
    f.destination.assign(bytes, std::byte{0});
    Fill(region->base() + 64, bytes, 9);
    const fabric::RemoteKey key = f.Lease({1, 1}, region, 64, bytes);
    // Chunk by chunk. Expect: all bytes, as they were.
    uint32_t slot = 0;
    for (size_t at = 0; at < bytes; at += chunk, ++slot) {
      const size_t n = std::min(chunk, bytes - at);
      const fabric::LocalPiece piece{&PlainDevice(), f.destination.data() + at, n};
      f.pair.client().Read({slot, 1}, kLink, kReader, key, at, {&piece, 1});
    }
    for (uint32_t i = 0; i < slot; ++i) REQUIRE(f.Done({i, 1}) == Error::kOk);
    REQUIRE(Filled(f.destination.data(), bytes, 9));
    // A slice into three pieces. Expect: in order, nothing beside them.
    std::vector<std::byte> small(400, std::byte{0xee});
    const fabric::LocalPiece pieces[] = {{&PlainDevice(), small.data() + 10, 100},
                                         {&PlainDevice(), small.data() + 200, 1},
                                         {&PlainDevice(), small.data() + 300, 50}};
    f.pair.client().Read({100, 1}, kLink, kReader, key, 777, pieces);
    REQUIRE(f.Done({100, 1}) == Error::kOk);
    const std::byte* from = region->base() + 64 + 777;
    REQUIRE(std::equal(from, from + 100, small.data() + 10));
    REQUIRE(from[100] == small[200]);
    REQUIRE(std::equal(from + 101, from + 151, small.data() + 300));
    REQUIRE((small[9] == std::byte{0xee} && small[110] == std::byte{0xee} &&
             small[201] == std::byte{0xee} && small[350] == std::byte{0xee}));
    f.Revoked({1, 1});
  }
}

TEST_CASE("a revoked lease is not read, and other leases are", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 16);
  Fill(region->base(), region->bytes(), 1);
  const fabric::RemoteKey first = f.Lease({1, 1}, region, 0, 1 << 15);
  const fabric::RemoteKey second = f.Lease({2, 1}, region, 1 << 15, 1 << 15);
  f.Revoked({1, 1});
  // Other bytes are there now. Expect: the reader does not get them.
  Fill(region->base(), 1 << 15, 2);
  std::fill(f.destination.begin(), f.destination.end(), std::byte{0});
  f.Read({1, 1}, first, 0, 4096);
  const Error error = f.Done({1, 1});
  REQUIRE((error == Error::kLeaseLost || error == Error::kLaneDown));
  REQUIRE_FALSE(Filled(f.destination.data(), 4096, 2));
  if (!f.pair.client().traits().prepares_lanes) {
    f.Read({2, 1}, second, 0, 4096);
    REQUIRE(f.Done({2, 1}) == Error::kOk);
  }
  REQUIRE(f.pair.client_events.down[kLink].empty());
}

TEST_CASE("a slot that is leased again after revocation has another key", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 16);
  const fabric::RemoteKey old = f.Lease({1, 1}, region, 0, 4096);
  f.Ended({1, 1}, !ByLane(f.pair.server()));
  const fabric::RemoteKey now = f.Lease({1, 2}, region, 0, 4096);
  f.Read({2, 1}, now, 0, 64);
  REQUIRE(f.Done({2, 1}) == Error::kOk);
  if (ByLane(f.pair.server())) return;  // the key is the region's
  REQUIRE(old.words != now.words);
  f.Read({1, 1}, old, 0, 64);
  REQUIRE(f.Done({1, 1}) != Error::kOk);
}

TEST_CASE("leases that their reader let go of end, and cost no lane", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 16);
  Fill(region->base(), region->bytes(), 1);
  fabric::RemoteKey last;
  for (uint32_t i = 1; i <= 20; ++i) {
    last = f.Lease({1, i}, region, i * 64, 4096);
    f.Read({1, i}, last, 0, 64);
    REQUIRE(f.Done({1, i}) == Error::kOk);
    REQUIRE(std::equal(f.destination.data(), f.destination.data() + 64, region->base() + i * 64));
    f.Ended({1, i}, false);
  }
  REQUIRE(f.pair.server_events.lanes_down[kLink].empty());
  REQUIRE(f.pair.client_events.lanes_down[kLink].empty());
  if (ByLane(f.pair.server())) return;  // only the lane's end takes the key back
  f.Read({2, 1}, last, 0, 64);
  REQUIRE(f.Done({2, 1}) != Error::kOk);
}

TEST_CASE("READs outside the lease and with made-up keys are refused", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  const memory::RegionRef region = MakeSlab(1 << 16);
  struct Case {
    uint64_t offset;
    size_t bytes;
  };
  for (const Case c : {Case{4096, 1}, Case{0, 4097}, Case{4000, 97}, Case{~uint64_t{0}, 64},
                       Case{~uint64_t{0} - 63, 64}, Case{uint64_t{1} << 63, 64}}) {
    INFO("offset " << c.offset << " bytes " << c.bytes);
    Fixture f(subject);
    const fabric::RemoteKey key = f.Lease({1, 1}, region, 4096, 4096);
    f.Read({1, 1}, key, c.offset, c.bytes);
    REQUIRE(f.Done({1, 1}) == Error::kOutOfBounds);
    REQUIRE(f.pair.client_events.down[kLink].empty());
  }
  for (size_t word = 0; word < 4; ++word) {
    for (const uint64_t flip : {uint64_t{1}, uint64_t{1} << 20, uint64_t{1} << 63, ~uint64_t{0}}) {
      INFO("word " << word << " xor " << flip);
      Fixture f(subject);
      Fill(region->base(), region->bytes(), 4);
      fabric::RemoteKey key = f.Lease({1, 1}, region, 4096, 4096);
      const uint64_t right = key.words[word];
      key.words[word] ^= flip;
      std::fill(f.destination.begin(), f.destination.end(), std::byte{0});
      f.Read({1, 1}, key, 0, 64);
      // A word that means nothing may be anything; else it is refused.
      if (f.Done({1, 1}) == Error::kOk) {
        REQUIRE(right == 0);
        REQUIRE(std::equal(region->base() + 4096, region->base() + 4160, f.destination.data()));
      }
      REQUIRE(f.pair.client_events.down[kLink].empty());
    }
  }
}

TEST_CASE("a revocation under READs ends each once, and none is wrong", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  const size_t bytes = 256 * 1024;
  const memory::RegionRef region = MakeSlab(bytes);
  for (int delay = 0; delay < 12; ++delay) {
    Fixture f(subject);
    const size_t chunk = std::min<size_t>(bytes, f.pair.client().traits().read_chunk_bytes);
    Fill(region->base(), bytes, 5);
    const fabric::RemoteKey key = f.Lease({1, 1}, region, 0, bytes);
    std::vector<std::vector<std::byte>> into(4, std::vector<std::byte>(chunk));
    for (uint32_t i = 0; i < 4; ++i) {
      const fabric::LocalPiece piece{&PlainDevice(), into[i].data(), chunk};
      f.pair.client().Read({i, 1}, kLink, kReader, key, 0, {&piece, 1});
    }
    // The reader polls a little; the owner revokes and then writes. Expect: what arrived says so
    // and is old.
    for (int i = 0; i < delay; ++i) f.pair.client().Poll(f.pair.client_events);
    f.pair.server().Revoke({1, 1});
    while (f.pair.server_events.revoked[LeaseSlot{1, 1}.word()] == 0) {
      f.pair.server().Poll(f.pair.server_events);
    }
    Fill(region->base(), bytes, 6);
    for (uint32_t i = 0; i < 4; ++i) {
      const Error error = f.Done({i, 1});
      if (error == Error::kOk) REQUIRE(Filled(into[i].data(), chunk, 5));
    }
    REQUIRE(f.pair.server_events.revoked[LeaseSlot{1, 1}.word()] == 1);
  }
}

TEST_CASE("lease and revoke in one tick are both answered, in order", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 16);
  for (uint32_t i = 1; i <= 300; ++i) {
    const LeaseSlot slot{i % 7, i};
    f.pair.server().Lease(slot, kLink, kOwner, region, region->base(), 4096);
    f.pair.server().Revoke(slot);
    REQUIRE(f.pair.server_events.revoked[slot.word()] == 0);
    REQUIRE(f.pair.Until([&] { return f.pair.server_events.revoked[slot.word()] == 1; }));
    REQUIRE(f.pair.server_events.leased[slot.word()].size() == 1);
  }
}

TEST_CASE("hundreds of leases live at once", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 20);
  Fill(region->base(), region->bytes(), 8);
  std::vector<fabric::RemoteKey> keys;
  for (uint32_t i = 0; i < 500; ++i) keys.push_back(f.Lease({i, 1}, region, i * 64, 64));
  for (uint32_t i = 0; i < 500; i += 7) {
    f.Read({i, 1}, keys[i], 0, 64);
    REQUIRE(f.Done({i, 1}) == Error::kOk);
    REQUIRE(std::equal(f.destination.data(), f.destination.data() + 64, region->base() + i * 64));
  }
  for (uint32_t i = 0; i < 500; ++i) f.pair.server().Revoke({i, 1});
  REQUIRE(f.pair.Until([&] {
    return f.pair.server_events.revoked.size() == 500 &&
           f.pair.server_events.revoked[LeaseSlot{499, 1}.word()] == 1;
  }));
}

TEST_CASE("two directions are read at once", "[contract][lease]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  f.pair.OpenLane(kLink, 0, f.pair.server());
  const memory::RegionRef there = MakeSlab(1 << 16), here = MakeSlab(1 << 16);
  Fill(there->base(), there->bytes(), 1);
  Fill(here->base(), here->bytes(), 2);
  const fabric::RemoteKey of_server = f.Lease({1, 1}, there, 0, 1 << 16);
  const fabric::RemoteKey of_client = LeaseNow(f.pair, f.pair.client(), f.pair.client_events,
                                               {1, 1}, kLink, kOwner, here, 0, 1 << 16);
  std::vector<std::byte> at_client(1 << 16), at_server(1 << 16);
  const fabric::LocalPiece to_client{&PlainDevice(), at_client.data(), at_client.size()};
  const fabric::LocalPiece to_server{&PlainDevice(), at_server.data(), at_server.size()};
  f.pair.client().Read({1, 1}, kLink, kReader, of_server, 0, {&to_client, 1});
  f.pair.server().Read({1, 1}, kLink, kReader, of_client, 0, {&to_server, 1});
  REQUIRE(f.pair.Until([&] {
    return !f.pair.client_events.reads[ReadSlot{1, 1}.word()].empty() &&
           !f.pair.server_events.reads[ReadSlot{1, 1}.word()].empty();
  }));
  REQUIRE(Filled(at_client.data(), at_client.size(), 1));
  REQUIRE(Filled(at_server.data(), at_server.size(), 2));
}

TEST_CASE("BreakLane answers every READ of the lane before it says that the lane is down",
          "[contract][lane]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  const memory::RegionRef region = MakeSlab(1 << 20);
  Fill(region->base(), region->bytes(), 3);
  const fabric::RemoteKey key = f.Lease({1, 1}, region, 0, 1 << 20);
  const size_t chunk = std::min<size_t>(1 << 20, f.pair.client().traits().read_chunk_bytes);
  std::vector<std::vector<std::byte>> into(8, std::vector<std::byte>(chunk));
  for (uint32_t i = 0; i < 8; ++i) {
    const fabric::LocalPiece piece{&PlainDevice(), into[i].data(), chunk};
    f.pair.client().Read({i, 1}, kLink, kReader, key, 0, {&piece, 1});
  }
  f.pair.client().BreakLane(kLink, kReader);
  REQUIRE(f.pair.Until([&] { return !f.pair.client_events.lanes_down[kLink].empty(); }));
  REQUIRE(f.pair.client_events.reads_after_lane_down == 8);
  for (uint32_t i = 0; i < 8; ++i) {
    const Error error = f.Done({i, 1});
    REQUIRE((error == Error::kOk || error == Error::kLaneDown));
    if (error == Error::kOk) REQUIRE(Filled(into[i].data(), chunk, 3));
  }
  // Nothing of the old lane writes any more.
  for (auto& buffer : into) std::fill(buffer.begin(), buffer.end(), std::byte{0x77});
  f.pair.Settle();
  for (auto& buffer : into)
    REQUIRE(std::count(buffer.begin(), buffer.end(), std::byte{0x77}) ==
            static_cast<ptrdiff_t>(chunk));
  REQUIRE(f.pair.client_events.lanes_down[kLink].size() == 1);
  // The owner breaks its end too. Expect: the lane's keys are void, frames still pass, the next
  // generation works.
  f.pair.server().BreakLane(kLink, kOwner);
  REQUIRE(f.pair.Until([&] { return !f.pair.server_events.lanes_down[kLink].empty(); }));
  REQUIRE(SendFrame(f.pair.client(), kLink, 100, 1));
  REQUIRE(f.pair.Until([&] { return f.pair.server_events.frames_of(kLink) == 1; }));
  f.pair.OpenLane(kLink, 0, f.pair.client(), 2);
  const Lane near{0, LaneRole::kReader, 2}, far{0, LaneRole::kOwner, 2};
  const fabric::RemoteKey again = LeaseNow(f.pair, f.pair.server(), f.pair.server_events, {1, 1},
                                           kLink, far, region, 0, 1 << 20);
  f.Read({20, 1}, again, 0, 64, near);
  REQUIRE(f.Done({20, 1}) == Error::kOk);
  f.Read({21, 1}, key, 0, 64, near);
  REQUIRE(f.Done({21, 1}) != Error::kOk);
}

TEST_CASE("a lane's successor is set up while the lane is still on its way down",
          "[contract][lane]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  if (!f.pair.client().traits().prepares_lanes) return;
  const memory::RegionRef region = MakeSlab(1 << 16);
  Fill(region->base(), region->bytes(), 3);
  f.Lease({1, 1}, region, 0, 1 << 16);
  f.BreakBothEnds(1);
  f.pair.OpenLane(kLink, 0, f.pair.client(), 2);
  const Lane near{0, LaneRole::kReader, 2}, far{0, LaneRole::kOwner, 2};
  const fabric::RemoteKey key =
      LeaseNow(f.pair, f.pair.server(), f.pair.server_events, {2, 1}, kLink, far, region, 64, 4096);
  REQUIRE(f.LanesDown(1));
  // A lease of the lane that is down ends, by force or not, and the successor lives.
  f.Revoked({1, 1});
  f.Read({1, 1}, key, 0, 4096, near);
  REQUIRE(f.Done({1, 1}) == Error::kOk);
  REQUIRE(std::equal(f.destination.data(), f.destination.data() + 4096, region->base() + 64));
  REQUIRE(f.LanesDown(1));
}

TEST_CASE("leases under way when their lane breaks are answered once, and so are their ends",
          "[contract][lane]") {
  VERBENA_CONTRACT_SUBJECT(subject);
  Fixture f(subject);
  if (!f.pair.client().traits().prepares_lanes) return;
  const memory::RegionRef region = MakeSlab(1 << 16);
  f.Lease({0, 1}, region, 0, 4096);
  const auto lease = [&](uint32_t slot) {
    f.pair.server().Lease({slot, 1}, kLink, kOwner, region, region->base() + slot * 64, 4096);
  };
  for (uint32_t slot = 1; slot <= 6; ++slot) lease(slot);
  f.pair.server().Revoke({0, 1});  // under way too
  f.pair.server().Release({1, 1});
  f.BreakBothEnds(1);
  lease(7);
  REQUIRE(f.LanesDown(1));
  Recorder& events = f.pair.server_events;
  const auto revoked = [&](uint32_t slot) { return events.revoked[LeaseSlot{slot, 1}.word()]; };
  const auto leased_times = [&](uint32_t slot) {
    return events.leased[LeaseSlot{slot, 1}.word()].size();
  };
  REQUIRE(f.pair.Until([&] {
    for (uint32_t slot = 1; slot <= 7; ++slot) {
      if (leased_times(slot) == 0) return false;
    }
    return revoked(0) > 0 && revoked(1) > 0;
  }));
  f.pair.Settle();
  for (uint32_t slot = 1; slot <= 7; ++slot) {
    const std::vector<Recorder::Leased>& leased = events.leased[LeaseSlot{slot, 1}.word()];
    REQUIRE(leased.size() == 1);
    REQUIRE((leased[0].error == Error::kOk || leased[0].error == Error::kLaneDown));
    if (slot != 1 && leased[0].error == Error::kOk) f.Revoked({slot, 1});
  }
  REQUIRE(events.leased[LeaseSlot{7, 1}.word()][0].error == Error::kLaneDown);
  REQUIRE(revoked(0) == 1);
  REQUIRE(revoked(1) == 1);
  // None of it touches the next lane.
  f.pair.OpenLane(kLink, 0, f.pair.client(), 2);
  const Lane near{0, LaneRole::kReader, 2}, far{0, LaneRole::kOwner, 2};
  const fabric::RemoteKey key =
      LeaseNow(f.pair, f.pair.server(), events, {1, 2}, kLink, far, region, 0, 4096);
  f.Read({1, 1}, key, 0, 64, near);
  REQUIRE(f.Done({1, 1}) == Error::kOk);
  REQUIRE(f.LanesDown(1));
}

}  // namespace
}  // namespace verbena::contract
