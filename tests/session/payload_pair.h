#pragma once
// What tests of payloads share: a pair whose READs take many chunks, and a call that holds one.
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "rpc/base/limits.h"
#include "rpc/memory/device_regions.h"
#include "rpc/memory/known_regions.h"
#include "tests/catch.h"
#include "tests/session/pair.h"

namespace verbena::session::testing {

inline fabric::sim::NetworkOptions Network(bool prepares_lanes, uint64_t seed = 3) {
  fabric::sim::NetworkOptions options;
  options.read_chunk_bytes = 8 * 1024;  // many chunks
  options.prepares_lanes = prepares_lanes;
  options.seed = seed;
  return options;
}

// READs that are posted stay so until SetFaults({}).
inline void HoldReads(Pair& pair) {
  fabric::sim::Faults hold;
  hold.hold_reads = true;
  pair.network.SetFaults(hold);
}

inline OutgoingPayload PayloadOf(const memory::Block& block, uint64_t ticket) {
  return {ticket, block.region(), block.data(), block.bytes()};
}

inline void Into(TestFetch& fetch, memory::Block& block, uint64_t offset = 0, uint64_t bytes = 0) {
  fetch.offset = offset;
  fetch.pieces.clear();
  fetch.pieces.push_back({&memory::HostDevice(), block.data(), bytes == 0 ? block.bytes() : bytes});
}

// The same memory, as if it were mapped in so many parts.
inline memory::RegionRef Joined(const memory::Block& block, size_t parts) {
  std::vector<memory::RegionRef> regions;
  for (size_t i = 0; i < parts; ++i) {
    const size_t from = block.bytes() * i / parts, to = block.bytes() * (i + 1) / parts;
    const memory::Extent extent{block.data() + from, to - from, memory::NextBufferId()};
    regions.push_back(std::make_shared<memory::Region>(memory::HostDevice(), extent,
                                                       memory::RegionKind::kForeign, -1, 0));
  }
  return memory::JoinRegions(std::move(regions));
}

// A held call whose request carries one payload of `bytes`.
struct Held {
  Held(Pair& p, size_t bytes, uint64_t seed = 1, size_t parts = 1)
      : pair(p), call("/test/Hold"), block(Pair::Pattern(bytes, seed)) {
    payload = PayloadOf(block, 42);
    if (parts > 1) payload.region = Joined(block, parts);
    Outgoing request;
    request.body = Bytes("held");
    request.payloads = {&payload, 1};
    const size_t before = pair.sink.served.size();
    pair.OnClient([&] { pair.owner.link->StartCall(call, request); });
    REQUIRE(pair.Run([&] { return pair.sink.served.size() > before; }));
    served = &pair.sink.served.back();
  }
  void Answer(const absl::Status& status = absl::OkStatus(), const Outgoing& reply = {}) {
    pair.OnServer([&] { served->link->Reply(*served, status, reply); });
  }
  Pair& pair;
  TestCall call;
  memory::Block block;
  OutgoingPayload payload;
  TestServed* served = nullptr;
};

// The server's fetch of all that a held call's request carries.
struct WholeFetch : TestFetch {
  explicit WholeFetch(Held& h) : held(h), into(*memory::AllocateBlock(h.block.bytes())) {
    Into(*this, into);
  }
  void Start() {
    held.pair.OnServer([this] { Link::StartFetch(*held.served->payloads, *this); });
  }
  bool Right() const {
    return std::memcmp(into.data(), held.block.data(), held.block.bytes()) == 0;
  }
  Held& held;
  memory::Block into;
};

}  // namespace verbena::session::testing
