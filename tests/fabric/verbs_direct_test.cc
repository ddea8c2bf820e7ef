// A NIC that reads and writes memory of devices by itself, over soft-RoCE with a made-up dma-buf.
#include <cerrno>

#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/fabric/verbs/gpu_report.h"
#include "rpc/fabric/verbs/settings.h"
#include "rpc/memory/registrars.h"
#include "tests/contract/fake_dmabuf.h"
#include "tests/fabric/verbs_device_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr LinkId kLink = DeviceRig::kLink;
constexpr ::verbena::Path kGdr = ::verbena::Path::kGdrRead;
constexpr ::verbena::Path kStaged = ::verbena::Path::kPinnedStaging;

// Of devices of its own: what was refused once for good is not asked for again.
struct DirectRig : DeviceRig {
  explicit DirectRig(const contract::Subject& subject, int devices = 10)
      : DeviceRig(subject, devices) {}
  void Revoke(LeaseSlot slot, bool by_force) {
    if (by_force) {
      pair.server().Revoke(slot);
    } else {
      pair.server().Release(slot);
    }
    REQUIRE(pair.Until([&] { return pair.server_events.revoked[slot.word()] == 1; }));
  }
};

TEST_CASE("a NIC reads one device's memory and writes another's, on each rung", "[verbs][gdr]") {
  VERBENA_EACH_RUNG(rung);
  FakeDmaBuf nic;
  DirectRig d(rung);
  const RemoteKey key = d.Lease();
  const int of_lease = FakeDmaBuf::live;
  CHECK(of_lease == 1);
  for (int round = 0; round < 2; ++round) {
    d.Blank();
    d.ReadAll(key);
    REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
    CHECK(d.Arrived());
    CHECK(d.AllBy(kGdr));
  }
  CHECK(FakeDmaBuf::live == 2);   // the destination's is kept
  CHECK(FakeDmaBuf::asked == 2);  // and was asked for once
  CHECK(FakeDmaBuf::bad_offset == 0);
  CHECK(d.server().copied_bytes() == 0);
  // Taken back by force: the registration is gone, whatever the reader does.
  d.Revoke({1, 1}, true);
  CHECK(FakeDmaBuf::live == 1);
  d.pair.client_events.reads.clear();
  d.Blank();
  d.Read(0, key);
  REQUIRE(d.pair.Until([&] { return !d.pair.client_events.reads.empty(); }));
  CHECK(d.Done() == 0);
  std::vector<std::byte> seen(DeviceRig::kChunk);
  d.to.Read(seen.data(), d.target->base(), seen.size());
  CHECK(seen == std::vector<std::byte>(DeviceRig::kChunk));
  d.ForgetTarget();
  CHECK(FakeDmaBuf::live == 0);
  CHECK(DeviceBytesOf(d.to).registered == 0);
  CHECK(DeviceBytesOf(d.from).registered == 0);
}

TEST_CASE("a lease of a part of an allocation is of that part alone, at any offset",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[0]);
  const size_t offset = GENERATE(size_t{0}, size_t{1}, size_t{4095}, size_t{8192 + 13});
  const RemoteKey key = contract::LeaseNow(d.pair, d.pair.server(), d.pair.server_events, {1, 1},
                                           kLink, OwnerLane(), d.source, offset, 10001);
  const LocalPiece odd{&d.to, d.target->base() + 4095, 10001};
  d.pair.client().Read({0, 1}, kLink, ReaderLane(), key, 0, {&odd, 1});
  REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
  std::vector<std::byte> seen(10003);
  d.to.Read(seen.data(), d.target->base() + 4094, seen.size());
  CHECK(seen.front() == std::byte{0});
  CHECK(seen.back() == std::byte{0});
  CHECK(std::equal(seen.begin() + 1, seen.end() - 1, d.pattern.begin() + offset));
  CHECK(FakeDmaBuf::bad_offset == 0);
  // One byte more is refused by the owner's device: the lease is a registration of its own.
  std::optional<KeyFields> fields = ReadKey(key);
  fields->bytes += 1;
  const LocalPiece more{&d.to, d.target->base(), 10002};
  d.pair.client().Read({1, 1}, kLink, ReaderLane(), MakeKey(*fields), 0, {&more, 1});
  REQUIRE(d.pair.Until([&] { return d.Done(Error::kLeaseLost) == 1; }));
}

TEST_CASE("a lease that its reader lets go of costs no lane", "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[0]);
  for (uint32_t i = 1; i <= 3; ++i) {
    const RemoteKey key = d.Lease({i, 1});
    d.pair.client_events.reads.clear();
    d.Read(i, key);
    REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
    d.Revoke({i, 1}, false);
  }
  CHECK(FakeDmaBuf::live == 1);
  CHECK(d.pair.server_events.lanes_down[kLink].empty());
}

TEST_CASE("memory mapped in parts is written part by part, and leased by way of the host's",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[0]);
  d.to.Split(d.target->base(), 5 * DeviceRig::kChunk + 4096 + 8);
  const RemoteKey key = d.Lease();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
  CHECK(d.AllBy(kGdr));
  CHECK(FakeDmaBuf::live == 3);
  CHECK(FakeDmaBuf::bad_offset == 0);
  d.from.Split(d.source->base(), DeviceRig::kChunk);
  const RemoteKey staged = d.Lease({2, 1});
  d.Blank();
  d.ReadAll(staged);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
  CHECK(d.AllBy(kStaged));
}

TEST_CASE("a NIC that takes no dma-buf is asked once, and all goes by way of the host's",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  FakeDmaBuf::refusal = EOPNOTSUPP;
  DirectRig d(Rungs()[1], 20);
  for (uint32_t i = 1; i <= 2; ++i) {
    const RemoteKey key = d.Lease({i, 1});
    d.Blank();
    d.ReadAll(key);
    REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
    CHECK(d.Arrived());
    CHECK(d.AllBy(kStaged));
  }
  // By each device's first user; READs that were under way at the same time asked with it.
  const int asked = FakeDmaBuf::asked;
  CHECK(asked >= 2);
  CHECK(asked <= 1 + static_cast<int>(DeviceRig::kChunks));
  d.ReadAll(d.Lease({3, 1}));
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(FakeDmaBuf::asked == asked);
  d.pair.client_events.reads.clear();
  d.Read(0, d.Lease({4, 1}), kGdr);
  REQUIRE(d.pair.Until([&] { return d.Done(Error::kUnsupported) == 1; }));
}

TEST_CASE("a registration that finds no room now is tried again for the next lease",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 22);
  FakeDmaBuf::refusal = ENOMEM;
  const RemoteKey staged = d.Lease({1, 1});
  CHECK(ReadKey(staged)->source == Source::kCopy);
  FakeDmaBuf::refusal = 0;
  CHECK(ReadKey(d.Lease({2, 1}))->source == Source::kDevice);
}

TEST_CASE("memory of a kind that is not exported is asked for once, and other memory is reached",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 34);
  const RemoteKey key = d.Lease();
  CHECK(FakeDmaBuf::asked == 1);
  d.to.RefuseExports(absl::UnimplementedError("memory of a pool"));
  for (int round = 0; round < 2; ++round) {
    d.Blank();
    d.ReadAll(key);
    REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
    CHECK(d.Arrived());
    CHECK(d.AllBy(kStaged));
  }
  d.to.RefuseExports(absl::OkStatus());
  d.Read(0, key);  // the same memory: not asked for again
  const auto other = contract::MakeFake(d.to, DeviceRig::kChunk);
  const LocalPiece piece{&d.to, other->base(), DeviceRig::kChunk};
  d.pair.client_events.reads.clear();
  d.pair.client().Read({50, 1}, kLink, ReaderLane(), key, 0, {&piece, 1});
  REQUIRE(d.pair.Until([&] { return d.Done() == 2; }));
  CHECK(d.pair.client_events.paths[ReadSlot{0, 1}.word()] == kStaged);
  CHECK(d.pair.client_events.paths[ReadSlot{50, 1}.word()] == kGdr);
}

TEST_CASE("library memory that is being read into is not let go of", "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 36);
  const RemoteKey key = d.Lease();
  d.Read(0, key);
  REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
  // As a READ under way has it.
  const std::vector<memory::Extent> extents = *d.to.Describe(d.target->base(), 1);
  Domain& domain = **Domain::Of(*TestPort().device, d.pair.client().traits().revocation);
  Domain::Pin pin = domain.FindDevice(d.to, extents.front());
  REQUIRE(pin);
  CHECK(absl::IsFailedPrecondition(memory::UnregisterRegion(d.target->buffer_id())));
  pin.Reset();
  CHECK(memory::UnregisterRegion(d.target->buffer_id()).ok());
  CHECK(DeviceBytesOf(d.to).registered == 0);
}

TEST_CASE("what a device has of address space bounds what is registered, and the unused goes first",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 24);
  constexpr uint64_t kNeeds = (DeviceRig::kBytes + (128 << 10)) / (64 << 10) * (64 << 10);
  // Three quarters of it are room for one allocation and not for two.
  d.to.SetNicFacts({.pci = {}, .dma_buf = true, .window_bytes = 2 * kNeeds});
  CHECK(DeviceBytesOf(d.to).most == kNeeds * 3 / 2);
  const RemoteKey key = d.Lease();
  const auto other = contract::MakeFake(d.to, DeviceRig::kBytes);
  for (const auto& into : {d.target, other, d.target}) {
    d.pair.client_events.reads.clear();
    d.pair.client_events.paths.clear();
    const LocalPiece piece{&d.to, into->base(), DeviceRig::kChunk};
    d.pair.client().Read({0, 1}, kLink, ReaderLane(), key, 0, {&piece, 1});
    REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
    CHECK(d.pair.client_events.paths[ReadSlot{0, 1}.word()] == kGdr);
    CHECK(DeviceBytesOf(d.to).registered <= kNeeds);
  }
  CHECK(FakeDmaBuf::live == 2);
  // None for an allocation that is larger than all of it.
  d.to.SetNicFacts({.pci = {}, .dma_buf = true, .window_bytes = kNeeds});
  d.ForgetTarget();
  d.pair.client_events.reads.clear();
  d.Read(0, key);
  REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
  CHECK(d.pair.client_events.paths[ReadSlot{0, 1}.word()] == kStaged);
}

TEST_CASE("memory that was freed and allocated again is registered again", "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 30);
  const RemoteKey key = d.Lease();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  const int asked = FakeDmaBuf::asked;
  d.to.Renumber(d.target->base());  // the same addresses, another allocation
  d.Blank();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
  CHECK(d.AllBy(kGdr));
  CHECK(FakeDmaBuf::asked > asked);
  CHECK(FakeDmaBuf::live == 2);
}

TEST_CASE("memory that was freed is let go of when other memory comes", "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 40);
  const RemoteKey key = d.Lease();
  const auto read_into = [&](const std::byte* base) {
    d.pair.client_events.reads.clear();
    const LocalPiece piece{&d.to, const_cast<std::byte*>(base), DeviceRig::kChunk};
    d.pair.client().Read({0, 1}, kLink, ReaderLane(), key, 0, {&piece, 1});
    REQUIRE(d.pair.Until([&] { return d.Done() == 1; }));
  };
  std::shared_ptr<contract::FakeRegion> freed = contract::MakeFake(d.to, DeviceRig::kBytes);
  const auto renumbered = contract::MakeFake(d.to, DeviceRig::kBytes);
  const auto kept = contract::MakeFake(d.to, DeviceRig::kBytes);
  for (const std::byte* into : {freed->base(), renumbered->base(), kept->base()}) read_into(into);
  CHECK(FakeDmaBuf::live == 4);  // with the lease's
  const uint64_t registered = DeviceBytesOf(d.to).registered;
  freed.reset();
  d.to.Renumber(renumbered->base());
  read_into(d.target->base());
  CHECK(FakeDmaBuf::live == 3);
  CHECK(DeviceBytesOf(d.to).registered < registered);
}

TEST_CASE("a device that does not see a NIC's writes by itself is flushed, once for many READs",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  DirectRig d(Rungs()[1], 26);
  const RemoteKey key = d.Lease();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.to.flushes() == 0);  // it sees them in order
  d.to.SetNicFacts({.pci = {}, .dma_buf = true, .flushes = true});
  d.Blank();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
  CHECK(d.to.flushes() > 0);
  CHECK(d.to.flushes() <= static_cast<int>(DeviceRig::kChunks));
  CHECK(d.from.flushes() == 0);
  d.to.Break(absl::DataLossError("broken by the test"));
  d.pair.client_events.reads.clear();
  d.Read(0, key);
  REQUIRE(d.pair.Until([&] { return d.Done(Error::kFault) == 1; }));
  d.to.Break(absl::OkStatus());
  // One that cannot be flushed is written by its own copies.
  d.to.SetNicFacts({.pci = {}, .dma_buf = true, .flushes = true, .writable = false});
  d.ForgetTarget();
  d.ReadAll(key);
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.AllBy(kStaged));
}

TEST_CASE("the doctor's pattern goes into a device's memory and out of it, or says why not",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  memory::FakeDevice& device = memory::FakeDevice::Install(32);
  memory::Device* const gpus[] = {&device};
  const VerbsReport devices = ReportDevices(Settings::FromEnvironment());
  const size_t live = device.live();
  device.SetNicFacts({.pci = {}, .dma_buf = true, .flushes = true});
  std::vector<GpuReport> reports = ReportGpus(gpus, devices);
  REQUIRE(reports.size() == 1);
  CHECK(reports[0].name == "fake:32");
  CHECK(reports[0].tried == TestPort().device->name());
  CHECK(reports[0].trial.ran);
  INFO(reports[0].trial.text);
  CHECK(reports[0].trial.works);
  CHECK(device.flushes() == 1);
  CHECK(reports[0].nearest.empty());  // neither is on a bus
  FakeDmaBuf::refusal = EOPNOTSUPP;
  reports = ReportGpus(gpus, devices);
  CHECK(reports[0].trial.ran);
  CHECK_FALSE(reports[0].trial.works);
  CHECK(reports[0].trial.text.find("ibv_reg_dmabuf_mr: Operation not supported") !=
        std::string::npos);
  reports = ReportGpus(gpus, VerbsReport());
  CHECK_FALSE(reports[0].trial.ran);
  CHECK(reports[0].trial.text == "there is no RDMA device");
  CHECK(device.live() == live);
  CHECK(FakeDmaBuf::live == 0);
}

TEST_CASE("memory that wanders is given to no NIC for long, and arrives all the same",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  FakeDmaBuf::peermem = true;
  FakeDmaBuf::peermem_refusal = EFAULT;  // it is not even asked
  DirectRig d(Rungs()[1], 42);
  for (memory::FakeDevice* fake : {&d.from, &d.to}) fake->SetNicFacts({});
  d.from.LetWander(d.source->base());
  d.to.LetWander(d.target->base());
  d.ReadAll(d.Lease());
  REQUIRE(d.pair.Until([&] { return d.Done() == DeviceRig::kChunks; }));
  CHECK(d.Arrived());
  CHECK(d.AllBy(kStaged));
  CHECK(FakeDmaBuf::asked + FakeDmaBuf::asked_by_address == 0);
  // The host's, which a user registers.
  static std::vector<std::byte> managed(1 << 16);
  d.to.LetWander(managed.data());
  Domain& domain = **Domain::Of(*TestPort().device, Revocation::kLeaseMr);
  const memory::Region region(memory::HostDevice(), {managed.data(), managed.size(), 1},
                              memory::RegionKind::kRegistered, -1, 0);
  CHECK(absl::IsUnimplemented(
      domain.Register(region, static_cast<uint8_t>(memory::Use::kReadInto)).status()));
}

TEST_CASE("where no dma-buf is had, nvidia_peermem is asked, and said when it refuses too",
          "[verbs][gdr]") {
  FakeDmaBuf nic;
  memory::FakeDevice& device = memory::FakeDevice::Install(28);
  const auto region = contract::MakeFake(device, 10000);
  absl::StatusOr<Domain*> domain = Domain::Of(*TestPort().device, Revocation::kLeaseMr);
  REQUIRE(domain.ok());
  const auto make = [&] {
    return RegisterDevice((*domain)->pd(), device, region->extent(), region->base(), 10000,
                          IBV_ACCESS_REMOTE_READ);
  };
  device.SetNicFacts({});
  CHECK(absl::IsUnimplemented(make().status()));
  CHECK(FakeDmaBuf::asked == 0);
  FakeDmaBuf::peermem = true;
  absl::StatusOr<ibv_mr*> made = make();
  REQUIRE(made.ok());
  CHECK(FakeDmaBuf::asked_by_address == 1);
  CHECK(DeviceBytesOf(device).registered > 0);
  CHECK(DeregisterDevice(*made));
  CHECK_FALSE(DeregisterDevice(*made));
  CHECK(DeviceBytesOf(device).registered == 0);
  device.SetNicFacts({.pci = {}, .dma_buf = true});
  FakeDmaBuf::refusal = EOPNOTSUPP;
  FakeDmaBuf::peermem_refusal = EFAULT;
  made = make();
  CHECK(made.status().code() == absl::StatusCode::kInvalidArgument);
  INFO(made.status().ToString());
  CHECK(made.status().message().find("ibv_reg_dmabuf_mr") != std::string::npos);
  CHECK(made.status().message().find("nvidia_peermem") != std::string::npos);
  CHECK(DeviceBytesOf(device).registered == 0);
}

}  // namespace
}  // namespace verbena::fabric::verbs
