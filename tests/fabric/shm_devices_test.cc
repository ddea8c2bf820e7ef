// shm with the library's own memory: slabs of the pools, and a device whose memory the CPU may not
// touch.
#include <vector>

#include "rpc/fabric/available.h"
#include "rpc/memory/known_regions.h"
#include "rpc/memory/region.h"
#include "tests/contract/fabric_contract.h"
#include "tests/contract/setup_thread.h"
#include "tests/fabric/fake_region.h"
#include "tests/fabric/shm_subject.h"

namespace verbena::contract {
namespace {

constexpr LinkId kLink{1};
constexpr Lane kReader{0, LaneRole::kReader, 1};
constexpr Lane kOwner{0, LaneRole::kOwner, 1};

Error ReadInto(Pair& pair, ReadSlot slot, const fabric::RemoteKey& key, uint64_t offset,
               const fabric::LocalPiece& piece) {
  pair.client().Read(slot, kLink, kReader, key, offset, {&piece, 1});
  auto& answers = pair.client_events.reads[slot.word()];
  REQUIRE(pair.Until([&] { return !answers.empty(); }));
  return answers[0];
}

TEST_CASE("a peer's device memory is mapped for each device that copies from it", "[shm][device]") {
  memory::FakeDevice& owner = memory::FakeDevice::Install(0);
  memory::FakeDevice& first = memory::FakeDevice::Install(1);
  memory::FakeDevice& second = memory::FakeDevice::Install(2);
  const size_t live = owner.live() + first.live() + second.live();
  {
    const Subject subject = ShmSubject();
    Pair pair(subject);
    pair.Connect(kLink);
    constexpr size_t kBytes = 5 << 12;
    std::vector<std::byte> pattern(kBytes), seen(kBytes);
    Fill(pattern.data(), kBytes, 31);
    auto source = MakeFake(owner, kBytes);
    owner.Write(source->base(), pattern.data(), kBytes);
    const fabric::RemoteKey key =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, source, 0, kBytes);
    uint32_t slot = 0;
    for (int round = 0; round < 2; ++round) {
      for (memory::FakeDevice* reader : {&first, &second}) {
        auto target = MakeFake(*reader, kBytes);
        REQUIRE(ReadInto(pair, {++slot, 1}, key, 0, {reader, target->base(), kBytes}) ==
                Error::kOk);
        reader->Read(seen.data(), target->base(), kBytes);
        CHECK(seen == pattern);
        // One mapping on each, made once.
        CHECK(reader->live() == 2);
      }
    }
    // To the host by the hardware that it lies on.
    REQUIRE(ReadInto(pair, {++slot, 1}, key, 0, {&memory::HostDevice(), seen.data(), kBytes}) ==
            Error::kOk);
    CHECK(seen == pattern);
    CHECK(owner.live() == 2);
  }
  CHECK(owner.live() + first.live() + second.live() == live);
}

TEST_CASE("device memory that cannot be exported is not leased, and the link lives",
          "[shm][device]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(0);
  const Subject subject = ShmSubject();
  Pair pair(subject);
  pair.Connect(kLink);
  auto good = MakeFake(fake, 4096);
  // Freed, and allocated again under another number.
  const auto stale = std::make_shared<memory::Region>(
      fake, memory::Extent{good->base(), 4096, memory::NextBufferId()},
      memory::RegionKind::kForeign, -1, 0);
  pair.server().Lease({5, 1}, kLink, kOwner, stale, stale->base(), 4096);
  auto& refused = pair.server_events.leased[LeaseSlot{5, 1}.word()];
  REQUIRE(pair.Until([&] { return !refused.empty(); }));
  CHECK(refused[0].error == Error::kUnsupported);
  LeaseNow(pair, pair.server(), pair.server_events, {6, 1}, kLink, kOwner, good, 0, 4096);
}

TEST_CASE("shm comes first of the fabrics that a process has", "[shm][available]") {
  SetupThread setup;
  fabric::FabricOptions options;
  options.host = &memory::HostDevice();
  options.post_setup = [&setup](SetupThread::Job job) { setup.Post(std::move(job)); };
  const auto fabrics = fabric::MakeFabrics(options);
  REQUIRE(fabrics.size() >= 2);
  REQUIRE(fabrics[0]->traits().name == "shm");
  REQUIRE(fabric::WhyMissing("shm").empty());
}

TEST_CASE("a block of the pools is read from its slab", "[shm][device]") {
  const Subject subject = ShmSubject();
  Pair pair(subject);
  pair.Connect(kLink);
  const size_t bytes = 20 << 20;  // more than a chunk
  auto source = memory::AllocateBlock(bytes);
  auto target = memory::AllocateBlock(bytes);
  REQUIRE((source.ok() && target.ok()));
  Fill(source->data(), bytes, 21);
  const size_t at = static_cast<size_t>(source->data() - source->region()->base());
  const fabric::RemoteKey key = LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink,
                                         kOwner, source->region(), at, bytes);
  const size_t chunk = pair.client().traits().read_chunk_bytes;
  for (size_t offset = 0; offset < bytes; offset += chunk) {
    const fabric::LocalPiece piece{&memory::HostDevice(), target->data() + offset,
                                   std::min(chunk, bytes - offset)};
    REQUIRE(ReadInto(pair, {static_cast<uint32_t>(offset / chunk), 1}, key, offset, piece) ==
            Error::kOk);
  }
  REQUIRE(Filled(target->data(), bytes, 21));
}

TEST_CASE("device memory is read to the host, from it, and between devices", "[shm][device]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(0);
  const size_t live = fake.live();
  {
    const Subject subject = ShmSubject();
    Pair pair(subject);
    pair.Connect(kLink);
    const size_t bytes = 3 << 16;
    std::vector<std::byte> pattern(bytes), seen(bytes);
    Fill(pattern.data(), bytes, 22);
    auto source = MakeFake(fake, bytes), target = MakeFake(fake, bytes);
    fake.Write(source->base(), pattern.data(), bytes);
    const fabric::RemoteKey of_device =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, source, 0, bytes);
    // Device to host.
    REQUIRE(ReadInto(pair, {1, 1}, of_device, 0, {&memory::HostDevice(), seen.data(), bytes}) ==
            Error::kOk);
    REQUIRE(seen == pattern);
    // Device to device.
    REQUIRE(ReadInto(pair, {2, 1}, of_device, 64, {&fake, target->base(), bytes - 64}) ==
            Error::kOk);
    fake.Read(seen.data(), target->base(), bytes - 64);
    REQUIRE(std::equal(seen.begin(), seen.end() - 64, pattern.begin() + 64));
    // Host to device.
    auto block = memory::AllocateBlock(bytes);
    REQUIRE(block.ok());
    Fill(block->data(), bytes, 23);
    const size_t at = static_cast<size_t>(block->data() - block->region()->base());
    const fabric::RemoteKey of_host = LeaseNow(pair, pair.server(), pair.server_events, {2, 1},
                                               kLink, kOwner, block->region(), at, bytes);
    REQUIRE(ReadInto(pair, {3, 1}, of_host, 0, {&fake, target->base(), bytes}) == Error::kOk);
    fake.Read(seen.data(), target->base(), bytes);
    REQUIRE(Filled(seen.data(), bytes, 23));
    // From the heap, which only process_vm_readv reaches: by a block of the pools.
    const memory::RegionRef heap = MakeForeign(bytes);
    Fill(heap->base(), bytes, 24);
    const fabric::RemoteKey of_heap =
        LeaseNow(pair, pair.server(), pair.server_events, {3, 1}, kLink, kOwner, heap, 0, bytes);
    REQUIRE(ReadInto(pair, {4, 1}, of_heap, 0, {&fake, target->base(), bytes}) == Error::kOk);
    fake.Read(seen.data(), target->base(), bytes);
    REQUIRE(Filled(seen.data(), bytes, 24));
  }
  REQUIRE(fake.live() == live);
}

TEST_CASE("a READ goes to as many pieces as it has, whatever devices they are on",
          "[shm][device]") {
  memory::FakeDevice& fake = memory::FakeDevice::Install(0);
  const bool staged = GENERATE(false, true);
  constexpr size_t kPieces = 2000, kPiece = 1000, kBytes = kPieces * kPiece;
  const Subject subject = ShmSubject();
  Pair pair(subject);
  pair.Connect(kLink);
  std::vector<std::byte> pattern(kBytes), seen(kBytes);
  Fill(pattern.data(), kBytes, 25);
  auto target = MakeFake(fake, kBytes);
  memory::Block block;
  std::shared_ptr<FakeRegion> device;
  fabric::RemoteKey key;
  if (staged) {
    memory::FakeDevice& owner = memory::FakeDevice::Install(1);
    device = MakeFake(owner, kBytes);
    owner.Write(device->base(), pattern.data(), kBytes);
    owner.RefuseExports(absl::FailedPreconditionError("not shared"));
    key =
        LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, device, 0, kBytes);
    owner.RefuseExports(absl::OkStatus());
  } else {
    block = *memory::AllocateBlock(kBytes);
    std::copy(pattern.begin(), pattern.end(), block.data());
    const auto at = static_cast<size_t>(block.data() - block.region()->base());
    key = LeaseNow(pair, pair.server(), pair.server_events, {1, 1}, kLink, kOwner, block.region(),
                   at, kBytes);
  }
  // Every other one is on the device.
  std::vector<fabric::LocalPiece> pieces;
  for (size_t i = 0; i < kPieces; ++i) {
    memory::Device* const on = i % 2 == 0 ? &memory::HostDevice() : &fake;
    std::byte* const base = i % 2 == 0 ? seen.data() : target->base();
    pieces.push_back({on, base + i * kPiece, kPiece});
  }
  pair.client().Read({1, 1}, kLink, kReader, key, 0, pieces);
  auto& answers = pair.client_events.reads[ReadSlot{1, 1}.word()];
  REQUIRE(pair.Until([&] { return !answers.empty(); }));
  REQUIRE(answers[0] == Error::kOk);
  for (size_t i = 1; i < kPieces; i += 2) {
    fake.Read(seen.data() + i * kPiece, target->base() + i * kPiece, kPiece);
  }
  CHECK(seen == pattern);
}

}  // namespace
}  // namespace verbena::contract
