// Verbs with memory that neither the CPU nor the NIC may touch: by way of host memory at both ends.
#include "tests/fabric/verbs_device_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink = DeviceRig::kLink;

TEST_CASE("device memory is READ by way of host memory, on each rung", "[verbs][device]") {
  VERBENA_EACH_RUNG(rung);
  DeviceRig d(rung);
  const RemoteKey key = d.Lease();
  for (int round = 0; round < 2; ++round) {
    d.Blank();
    d.ReadAll(key);
    REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
    CHECK(d.Arrived());
    CHECK(d.AllBy(::verbena::Path::kPinnedStaging));
  }
  // The lease is what it was when its key was told, and no READ finds it when it has ended.
  d.pair.server().Revoke({1, 1});
  REQUIRE(d.pair.Until([&] { return d.pair.server_events.revoked.size() == 1; }));
  d.pair.client_events.reads.clear();
  d.Read(0, key);
  REQUIRE(d.pair.Until([&] { return !d.pair.client_events.reads.empty(); }));
  CHECK(d.Done() == 0);
}

TEST_CASE("host memory is READ into a device's, and a device's into host memory",
          "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  const memory::RegionRef host = contract::MakeSlab(DeviceRig::kChunk);
  contract::Fill(host->base(), host->bytes(), 9);
  const RemoteKey host_key = contract::LeaseNow(d.pair, d.pair.server(), d.pair.server_events,
                                                {2, 1}, kLink, OwnerLane(), host, 0, host->bytes());
  const RemoteKey key = d.Lease();
  const memory::RegionRef into = contract::MakeSlab(DeviceRig::kChunk);
  const LocalPiece to_device{&d.to, d.target->base(), DeviceRig::kChunk};
  const LocalPiece to_host{&into->device(), into->base(), DeviceRig::kChunk};
  d.pair.client().Read({0, 1}, kLink, ReaderLane(), host_key, 0, {&to_device, 1});
  d.pair.client().Read({1, 1}, kLink, ReaderLane(), key, DeviceRig::kChunk, {&to_host, 1});
  d.pair.client().Read({2, 1}, kLink, ReaderLane(), host_key, 0, {&to_host, 1});
  REQUIRE(d.pair.Until([&] { return d.Done() == 3; }));
  std::vector<std::byte> seen(DeviceRig::kChunk);
  d.to.Read(seen.data(), d.target->base(), seen.size());
  CHECK(contract::Filled(seen.data(), seen.size(), 9));
  auto& paths = d.pair.client_events.paths;
  CHECK(paths[ReadSlot{0, 1}.word()] == ::verbena::Path::kPinnedStaging);
  CHECK(paths[ReadSlot{1, 1}.word()] == ::verbena::Path::kPinnedStaging);
  CHECK(paths[ReadSlot{2, 1}.word()] == ::verbena::Path::kRdmaRead);
}

TEST_CASE("what a lease of device memory copied is READ whole by a host", "[verbs][device]") {
  DeviceRig d(Rungs()[1]);
  const RemoteKey key = d.Lease();
  const memory::RegionRef into = contract::MakeSlab(DeviceRig::kBytes);
  for (uint32_t i = 0; i < DeviceRig::kChunks; ++i) {
    const size_t bytes = std::min(DeviceRig::kChunk, DeviceRig::kBytes - i * DeviceRig::kChunk);
    const LocalPiece piece{&into->device(), into->base() + i * DeviceRig::kChunk, bytes};
    d.pair.client().Read({i, 1}, kLink, ReaderLane(), key, i * DeviceRig::kChunk, {&piece, 1});
  }
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(std::equal(d.pattern.begin(), d.pattern.end(), into->base()));
}

TEST_CASE("another path is refused by name, and nothing moves", "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  const RemoteKey key = d.Lease();
  d.Read(0, key, ::verbena::Path::kGdrRead);
  REQUIRE(d.pair.Until([&] { return d.Done(Error::kUnsupported) == 1; }));
  CHECK(d.pair.client_events.paths[ReadSlot{0, 1}.word()] == ::verbena::Path::kPinnedStaging);
  std::vector<std::byte> seen(DeviceRig::kChunk);
  d.to.Read(seen.data(), d.target->base(), seen.size());
  CHECK(seen == std::vector<std::byte>(DeviceRig::kChunk));
  d.pair.client_events.reads.clear();
  d.Read(0, key, ::verbena::Path::kPinnedStaging);
  REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
}

TEST_CASE("a reader whose device stands still takes no more than its stages", "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  const RemoteKey key = d.Lease();
  d.to.LetCopies(0);
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.to.waiting() == Stages::kCount; }));
  d.pair.Settle();
  CHECK(d.to.waiting() == Stages::kCount);
  CHECK(d.Done() == 0);
  // Frames go on.
  REQUIRE(contract::SendFrame(d.pair.server(), kLink, 100, 1));
  REQUIRE(d.pair.Until([&] { return d.pair.client_events.frames_of(kLink) == 1; }));
  d.to.LetCopies(3);
  REQUIRE(d.pair.Until([&] { return d.Done() == 3; }));
  d.to.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
}

TEST_CASE("a lane that breaks under copies is down when they have ended", "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  const RemoteKey key = d.Lease();
  d.to.LetCopies(0);
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.to.waiting() == Stages::kCount; }));
  d.pair.client().BreakLane(kLink, ReaderLane());
  d.pair.Settle(std::chrono::milliseconds(100));
  CHECK(d.pair.client_events.lanes_down[kLink].empty());
  CHECK(d.Done(Error::kLaneDown) == DeviceRig::kChunks - Stages::kCount);
  d.to.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return d.pair.client_events.lanes_down[kLink].size() == 1; }));
  CHECK(d.Done() == Stages::kCount);
}

TEST_CASE("a lease waits for its copy, is given up with its lane, and leaves no memory behind",
          "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  d.from.LetCopies(0);
  auto& answers = d.pair.server_events.leased[LeaseSlot{1, 1}.word()];
  d.pair.server().Lease({1, 1}, kLink, OwnerLane(), d.source, d.source->base(), DeviceRig::kBytes);
  REQUIRE(d.pair.Until([&] { return d.from.waiting() == 3; }));  // pieces of a MiB
  d.pair.Settle();
  CHECK(answers.empty());
  d.pair.server().BreakLane(kLink, OwnerLane());
  d.pair.Settle(std::chrono::milliseconds(50));
  CHECK(answers.empty());  // its device reads the memory still
  d.from.LetCopies(-1);
  REQUIRE(d.pair.Until([&] { return answers.size() == 1; }));
  CHECK(answers[0].error == Error::kLaneDown);
  REQUIRE(d.pair.Until([&] { return d.server().copied_bytes() == 0; }));
}

TEST_CASE("a lease of device memory beyond the limit of copies is refused, and room comes back",
          "[verbs][device]") {
  contract::VerbsWay way{"verbs by registration", fabric::Revocation::kLeaseMr};
  way.copied_bytes_max = DeviceRig::kBytes + 100;
  const contract::Subject subject = contract::VerbsSubject(way);
  DeviceRig d(subject);
  d.Lease({1, 1});
  CHECK(d.server().copied_bytes() == DeviceRig::kBytes);
  auto& answers = d.pair.server_events.leased[LeaseSlot{2, 1}.word()];
  d.pair.server().Lease({2, 1}, kLink, OwnerLane(), d.source, d.source->base(), 101);
  REQUIRE(d.pair.Until([&] { return answers.size() == 1; }));
  CHECK(answers[0].error == Error::kNoMemory);
  d.pair.server().Lease({3, 1}, kLink, OwnerLane(), d.source, d.source->base(), 100);
  auto& fits = d.pair.server_events.leased[LeaseSlot{3, 1}.word()];
  REQUIRE(d.pair.Until([&] { return fits.size() == 1; }));
  CHECK(fits[0].error == Error::kOk);
  for (const uint32_t index : {1, 3}) d.pair.server().Release({index, 1});
  REQUIRE(d.pair.Until([&] { return d.pair.server_events.revoked.size() == 2; }));
  CHECK(d.server().copied_bytes() == 0);
}

TEST_CASE("a device that fails under the copy of a lease, or of a READ, ends that alone",
          "[verbs][device]") {
  DeviceRig d(Rungs()[0]);
  const RemoteKey key = d.Lease();
  const LocalPiece nowhere{&d.to, d.target->base() + DeviceRig::kBytes - 10, 100};
  d.pair.client().Read({100, 1}, kLink, ReaderLane(), key, 0, {&nowhere, 1});
  d.Read(1, key);
  REQUIRE(d.pair.Until([&] { return d.Done() == 1 && d.Done(Error::kFault) == 1; }));
  d.from.Break(absl::DataLossError("broken by the test"));
  auto& answers = d.pair.server_events.leased[LeaseSlot{2, 1}.word()];
  d.pair.server().Lease({2, 1}, kLink, OwnerLane(), d.source, d.source->base(), 1000);
  REQUIRE(d.pair.Until([&] { return answers.size() == 1; }));
  CHECK(answers[0].error == Error::kFault);
  d.from.Break(absl::OkStatus());
  CHECK(d.server().copied_bytes() == DeviceRig::kBytes);
}

}  // namespace
}  // namespace verbena::fabric::verbs
