#pragma once
// A link over verbs between two fake devices, for tests of what a NIC, or a stage, does for memory
// that the CPU may not touch: the server leases memory of one, the client READs it into the
// other's.
#include <algorithm>
#include <memory>
#include <vector>

#include "rpc/memory/fake_device.h"
#include "rpc/memory/pool.h"
#include "rpc/memory/registrars.h"
#include "tests/contract/verbs_subjects.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {

struct DeviceRig {
  static constexpr LinkId kLink{1};
  static constexpr size_t kChunk = 256 << 10;
  static constexpr size_t kChunks = 12;
  static constexpr size_t kBytes = kChunks * kChunk - 77;

  // `devices`: the index of the first of two.
  explicit DeviceRig(const contract::Subject& subject, int devices = 5)
      : from(memory::FakeDevice::Install(devices)),
        to(memory::FakeDevice::Install(devices + 1)),
        pair(subject) {
    REQUIRE(memory::AllocateBlock(8 << 20).ok());  // room in the pools: stages do not grow them
    pattern.resize(kBytes);
    contract::Fill(pattern.data(), kBytes, 5);
    source = contract::MakeFake(from, kBytes);
    target = contract::MakeFake(to, kBytes);
    memory::RegisterWhereTaken(target, static_cast<uint8_t>(memory::Use::kReadInto));
    from.Write(source->base(), pattern.data(), kBytes);
    Blank();
    pair.Connect(kLink);
    pair.OpenLane(kLink, 0, pair.client());
  }
  ~DeviceRig() {
    from.LetCopies(-1);
    to.LetCopies(-1);
    ForgetTarget();
  }
  // As its end does.
  void ForgetTarget() {
    absl::Status status;
    REQUIRE(pair.Until([&] {
      status = memory::UnregisterRegion(target->buffer_id());
      return status.ok();
    }));
  }

  RemoteKey Lease(LeaseSlot slot = {1, 1}) {
    return contract::LeaseNow(pair, pair.server(), pair.server_events, slot, kLink, OwnerLane(),
                              source, 0, kBytes);
  }
  void Read(uint32_t i, const RemoteKey& key, ::verbena::Path path = ::verbena::Path::kNone) {
    const size_t bytes = std::min(kChunk, kBytes - i * kChunk);
    const LocalPiece piece{&to, target->base() + i * kChunk, bytes, {}, path};
    pair.client().Read({i, 1}, kLink, ReaderLane(), key, i * kChunk, {&piece, 1});
  }
  void ReadAll(const RemoteKey& key) {
    pair.client_events.reads.clear();
    pair.client_events.paths.clear();
    for (uint32_t i = 0; i < kChunks; ++i) Read(i, key);
  }
  size_t Done(Error error = Error::kOk) {
    size_t done = 0;
    for (const auto& [slot, errors] : pair.client_events.reads) {
      REQUIRE(errors.size() == 1);
      done += errors[0] == error;
    }
    return done;
  }
  bool AllBy(::verbena::Path path) {
    const auto& paths = pair.client_events.paths;
    return paths.size() == kChunks && std::all_of(paths.begin(), paths.end(), [path](auto& said) {
             return said.second == path;
           });
  }
  bool Arrived() {
    std::vector<std::byte> seen(kBytes);
    to.Read(seen.data(), target->base(), kBytes);
    return seen == pattern;
  }
  void Blank() { to.Write(target->base(), std::vector<std::byte>(kBytes).data(), kBytes); }
  VerbsFabric& client() { return static_cast<VerbsFabric&>(pair.client()); }
  VerbsFabric& server() { return static_cast<VerbsFabric&>(pair.server()); }

  memory::FakeDevice& from;
  memory::FakeDevice& to;
  contract::Pair pair;
  std::vector<std::byte> pattern;
  std::shared_ptr<contract::FakeRegion> source, target;
};

}  // namespace verbena::fabric::verbs
