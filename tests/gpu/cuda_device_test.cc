// What a GPU's memory is found to be, exported as, and imported as.
#include "rpc/gpu/cuda_device.h"

#include <sys/mman.h>
#include <unistd.h>

#include <vector>

#include "tests/catch.h"
#include "tests/gpu/fake_driver.h"

namespace verbena::gpu {
namespace {

using memory::Export;
using memory::ExportWay;
using memory::Extent;

constexpr size_t kMiB = 1 << 20;

std::unique_ptr<CudaDevice> Gpu(FakeDriver& cuda, int ordinal) {
  auto made = CudaDevice::Create(cuda.table(), ordinal);
  REQUIRE(made.ok());
  return *std::move(made);
}

const void* At(abi::Address address) { return reinterpret_cast<const void*>(address); }

std::byte* To(abi::Address address) { return reinterpret_cast<std::byte*>(address); }

TEST_CASE("memory is described by what the driver says of an address, without a context", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  const auto gpu = Gpu(cuda, 0);
  const abi::Address user = cuda.Malloc(0, 3 * kMiB),
                     pool = cuda.Malloc(0, 4096, MemoryKind::kPool);
  const auto found = gpu->Describe(At(user + 100), 3 * kMiB - 100);
  REQUIRE(found.ok());
  REQUIRE(found->size() == 1);
  CHECK(At(user) == (*found)[0].base);
  CHECK((*found)[0].bytes == 3 * kMiB);
  // The same allocation keeps its number, another has another.
  CHECK((*gpu->Describe(At(user), 1))[0].buffer_id == (*found)[0].buffer_id);
  CHECK((*gpu->Describe(At(pool), 4096))[0].buffer_id != (*found)[0].buffer_id);
  CHECK(absl::IsNotFound(gpu->Describe(At(user), 3 * kMiB + 1).status()));
  int host = 0;
  CHECK(absl::IsNotFound(gpu->Describe(&host, 4).status()));
  const auto theirs = gpu->Describe(At(cuda.Malloc(1, 64)), 64);
  CHECK(absl::IsNotFound(theirs.status()));
  CHECK(std::string(theirs.status().message()).find("cuda:1, not of cuda:0") != std::string::npos);
  CHECK(cuda.contexts == std::vector<int>{0, 0});
}

TEST_CASE("memory that was freed and allocated again is other memory", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  const abi::Address user = cuda.Malloc(0, kMiB);
  const Extent before = (*gpu->Describe(At(user), kMiB))[0];
  CHECK(gpu->IsThere(before));
  auto memory = cuda.memories_[user];
  cuda.Free(user);
  CHECK_FALSE(gpu->IsThere(before));
  CHECK(absl::IsNotFound(gpu->Describe(At(user), kMiB).status()));
  CHECK(absl::IsNotFound(gpu->ExportTo(before, ExportWay::kIpc).status()));
  memory.id = cuda.next_id_++;
  cuda.memories_[user] = memory;
  CHECK_FALSE(gpu->IsThere(before));
  CHECK((*gpu->Describe(At(user), kMiB))[0].buffer_id != before.buffer_id);
  const auto stale = gpu->ExportTo(before, ExportWay::kIpc);
  CHECK(absl::IsNotFound(stale.status()));
  CHECK(std::string(stale.status().message()).find("freed and allocated again") !=
        std::string::npos);
  CHECK_FALSE(gpu->IsThere(before));
}

TEST_CASE("what is in use keeps its number, however much is allocated and freed", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  const abi::Address user = cuda.Malloc(0, kMiB);
  const uint64_t number = (*gpu->Describe(At(user), 1))[0].buffer_id;
  const abi::Address unused = cuda.Malloc(0, kMiB);
  const uint64_t before = (*gpu->Describe(At(unused), 1))[0].buffer_id;
  auto memory = cuda.memories_[user];
  constexpr abi::Address kElsewhere = abi::Address{1} << 60;
  for (uint64_t i = 0; i < 70'000; ++i) {
    memory.id = cuda.next_id_++;
    cuda.memories_[kElsewhere + i * kMiB] = memory;
    REQUIRE(gpu->Describe(At(kElsewhere + i * kMiB), 1).ok());
    cuda.memories_.erase(kElsewhere + i * kMiB);
    if (i % 5000 == 0) CHECK((*gpu->Describe(At(user), 1))[0].buffer_id == number);
  }
  CHECK((*gpu->Describe(At(user), 1))[0].buffer_id == number);
  // Nothing is remembered for ever.
  CHECK((*gpu->Describe(At(unused), 1))[0].buffer_id != before);
}

TEST_CASE("memory mapped in parts has an extent for each", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  const abi::Address at = cuda.Reserve(16 * kMiB);
  cuda.Map(at, 2 * kMiB, 0);
  cuda.Map(at + 2 * kMiB, 4 * kMiB, 0);
  const auto found = gpu->Describe(At(at + kMiB), 4 * kMiB);
  REQUIRE(found.ok());
  REQUIRE(found->size() == 2);
  CHECK(At(at) == (*found)[0].base);
  CHECK((*found)[0].bytes == 2 * kMiB);
  CHECK(At(at + 2 * kMiB) == (*found)[1].base);
  CHECK((*found)[1].bytes == 4 * kMiB);
  CHECK(absl::IsNotFound(gpu->Describe(At(at), 7 * kMiB).status()));  // runs into the hole
}

TEST_CASE("each kind of memory is exported the way that it can be, or says why not", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  const auto exported = [&](abi::Address at, ExportWay way) {
    return gpu->ExportTo((*gpu->Describe(At(at), 64))[0], way);
  };
  const abi::Address user = cuda.Malloc(0, kMiB), space = cuda.Reserve(8 * kMiB);
  cuda.Map(space, 2 * kMiB, 0);
  cuda.Map(space + 2 * kMiB, 2 * kMiB, 0, false);
  CHECK(exported(user, ExportWay::kHostPeer)->way == ExportWay::kIpc);
  const auto mapped = exported(space, ExportWay::kHostPeer);
  REQUIRE(mapped.ok());
  CHECK(mapped->way == ExportWay::kVmmDescriptor);
  CHECK(mapped->hardware == gpu->hardware());
  close(mapped->fd);
  const auto plain = exported(space + 2 * kMiB, ExportWay::kHostPeer);
  CHECK(absl::IsFailedPrecondition(plain.status()));
  CHECK(std::string(plain.status().message()).find("without a POSIX descriptor") !=
        std::string::npos);
  const auto pool = exported(cuda.Malloc(0, 64, MemoryKind::kPool), ExportWay::kHostPeer);
  CHECK(absl::IsFailedPrecondition(pool.status()));
  CHECK(std::string(pool.status().message()).find("cudaMallocAsync") != std::string::npos);
  CHECK(absl::IsFailedPrecondition(
      exported(cuda.Malloc(0, 64, MemoryKind::kManaged), ExportWay::kHostPeer).status()));
  CHECK(absl::IsUnimplemented(exported(user, ExportWay::kMemfd).status()));
  // A NIC's descriptor is of whole pages; the extent begins within.
  const auto nic = exported(cuda.Malloc(0, 100), ExportWay::kDmaBuf);
  REQUIRE(nic.ok());
  CHECK(nic->offset < 4096);
  close(nic->fd);
  cuda.Fail("cuIpcGetMemHandle", abi::kNotPermitted);
  CHECK(absl::IsPermissionDenied(exported(user, ExportWay::kIpc).status()));
  cuda.table().cuMemGetHandleForAddressRange = nullptr;
  CHECK(absl::IsUnimplemented(exported(user, ExportWay::kDmaBuf).status()));
}

TEST_CASE("managed memory is a GPU's that goes to no process and no NIC, wherever it is", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  const abi::Address user = cuda.Malloc(0, kMiB),
                     managed = cuda.Malloc(0, kMiB, MemoryKind::kManaged);
  for (const bool on_host : {false, true}) {
    INFO((on_host ? "on the host" : "on the GPU"));
    cuda.memories_[managed].host = on_host;  // the driver may say where it is now
    const auto facts = FactsOf(cuda.table(), managed + 100);
    REQUIRE(facts.ok());
    CHECK(facts->kind == MemoryKind::kManaged);
    CHECK(ReachOf(cuda.table(), managed, kMiB) == Reach::kManaged);
    const auto extents = gpu->Describe(At(managed + 100), 100);
    REQUIRE(extents.ok());
    const Extent extent = (*extents)[0];
    CHECK(extent.base == At(managed));
    for (const ExportWay way :
         {ExportWay::kHostPeer, ExportWay::kIpc, ExportWay::kVmmDescriptor, ExportWay::kDmaBuf}) {
      const absl::Status status = gpu->ExportTo(extent, way).status();
      CHECK(absl::IsFailedPrecondition(status));
      CHECK(std::string(status.message()).find("managed memory") != std::string::npos);
    }
    CHECK(gpu->Wanders(extent.base));
    // Nobody knows whether it is a copy between GPUs.
    CHECK(gpu->PathOf({To(managed), To(user), 64}, Path::kNvlinkIpc) == Path::kDeviceCopy);
    CHECK(gpu->PathOf({To(user), To(managed), 64}, Path::kNvlinkIpc) == Path::kDeviceCopy);
  }
  CHECK_FALSE(gpu->Wanders(At(user)));
  CHECK_FALSE(gpu->Wanders(&cuda));
}

TEST_CASE("page-locked memory is the host's, and who takes it for a GPU's is told so", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  void* pinned = nullptr;
  {
    const InContext in(cuda.table(), *gpu->context().Get());
    REQUIRE(cuda.table().cuMemHostAlloc(&pinned, 4096, abi::kHostAllocPortable) == abi::kSuccess);
  }
  const auto address = reinterpret_cast<abi::Address>(pinned);
  const absl::Status status = gpu->Describe(pinned, 64).status();
  CHECK(absl::IsNotFound(status));
  CHECK(std::string(status.message()).find("page-locked memory of the host: wrap it as") !=
        std::string::npos);
  CHECK(ReachOf(cuda.table(), address, 4096) == Reach::kPinned);
  const abi::Address user = cuda.Malloc(0, 4096);
  CHECK(gpu->PathOf({To(user), static_cast<std::byte*>(pinned), 64}, Path::kMapped) ==
        Path::kDeviceCopy);
}

TEST_CASE("a NIC is told what the GPU sees of its writes, and flushes only where it must",
          "[gpu][nic]") {
  using Attribute = abi::DeviceAttribute;
  FakeDriver& cuda = FakeDriver::Reset(2);
  cuda.attributes = {{Attribute::kDmaBuf, 1}, {Attribute::kRdmaWritesOrdering, 100}};
  const auto ordered = Gpu(cuda, 1);
  CHECK(ordered->nic_facts().pci == "0000:1c:00.0");
  CHECK(ordered->nic_facts().dma_buf);
  CHECK_FALSE(ordered->nic_facts().flushes);
  CHECK(ordered->nic_facts().writable);
  CHECK(ordered->FlushNicWrites().ok());
  CHECK(cuda.calls["cuFlushGPUDirectRDMAWrites"] == 0);
  CHECK(cuda.contexts[1] == 0);  // for all this
  cuda.attributes[Attribute::kRdmaWritesOrdering] = 0;
  const auto unordered = Gpu(cuda, 0);
  CHECK(unordered->nic_facts().flushes);
  CHECK(unordered->nic_facts().writable);
  CHECK(unordered->FlushNicWrites().ok());
  CHECK(cuda.calls["cuFlushGPUDirectRDMAWrites"] == 1);
  CHECK(cuda.wrong_context == 0);
  cuda.Fail("cuFlushGPUDirectRDMAWrites", abi::kEccUncorrectable);
  CHECK(absl::IsDataLoss(unordered->FlushNicWrites()));
  CHECK_FALSE(unordered->health().ok());
  // It could be flushed by work on the GPU alone.
  cuda.attributes[Attribute::kRdmaFlushOptions] = 2;
  CHECK_FALSE(Gpu(cuda, 0)->nic_facts().writable);
  cuda.attributes = {{Attribute::kDmaBuf, 0}};
  CHECK_FALSE(Gpu(cuda, 0)->nic_facts().dma_buf);
  cuda.attributes.clear();
  cuda.table().cuMemGetHandleForAddressRange = nullptr;
  cuda.table().cuDeviceGetPCIBusId = nullptr;
  CHECK_FALSE(Gpu(cuda, 0)->nic_facts().dma_buf);
  CHECK(Gpu(cuda, 0)->nic_facts().pci.empty());
}

TEST_CASE("another GPU's memory is imported for copies of this one", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  const auto owner = Gpu(cuda, 0), reader = Gpu(cuda, 1);
  const Extent mine = *owner->Allocate(3 * kMiB);
  const abi::Address user = cuda.Malloc(0, 8192);
  const int sent = 77;
  cuda.Write(reinterpret_cast<abi::Address>(mine.base) + kMiB, &sent, 4);
  cuda.Write(user + 4096, &sent, 4);
  for (const Extent& extent : {mine, (*owner->Describe(At(user), 8192))[0]}) {
    const auto mapping = reader->Import(*owner->ExportTo(extent, ExportWay::kHostPeer));
    REQUIRE(mapping.ok());
    CHECK(mapping->device == reader.get());
    CHECK(mapping->bytes >= extent.bytes);
    int seen = 0;
    const size_t offset = extent.base == mine.base ? kMiB : 4096;
    cuda.Read(&seen, reinterpret_cast<abi::Address>(mapping->base) + offset, 4);
    CHECK(seen == sent);
    reader->Release(*mapping);
  }
  owner->Free(mine);
  CHECK(cuda.live() == 1);  // the user's
  CHECK(cuda.contexts == std::vector<int>{1, 1});
  CHECK(cuda.wrong_context == 0);
}

TEST_CASE("the path of a copy is what both ends are", "[gpu][path]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  const auto owner = Gpu(cuda, 0), same = Gpu(cuda, 0), other = Gpu(cuda, 1);
  const Extent mine = *owner->Allocate(2 * kMiB), theirs = *other->Allocate(2 * kMiB);
  const auto path_by = [&](CudaDevice& reader) {
    const memory::Mapping mapping =
        *reader.Import(*owner->ExportTo(mine, ExportWay::kVmmDescriptor));
    reader.Release(mapping);
    return mapping.path;
  };
  CHECK(path_by(*same) == Path::kSameDevice);
  CHECK(path_by(*other) == Path::kNvlinkIpc);
  cuda.nvlink = false;
  CHECK(path_by(*other) == Path::kPeerIpc);
  Export hidden = *owner->ExportTo(mine, ExportWay::kVmmDescriptor);
  hidden.hardware[3] = std::byte{0xee};
  const memory::Mapping unseen = *other->Import(hidden);
  CHECK(unseen.path == Path::kPeerIpc);
  other->Release(unseen);
  std::vector<std::byte> heap(64);
  void* pinned = nullptr;
  {
    const InContext in(cuda.table(), *owner->context().Get());
    REQUIRE(cuda.table().cuMemHostAlloc(&pinned, 64, abi::kHostAllocPortable) == abi::kSuccess);
  }
  CHECK(owner->PathOf({mine.base, theirs.base, 64}, Path::kNvlinkIpc) == Path::kNvlinkIpc);
  // Of what it made itself no driver is asked.
  const Extent another = *owner->Allocate(kMiB);
  const int asked = cuda.calls["cuPointerGetAttributes"];
  CHECK(owner->PathOf({mine.base, another.base, 64}, Path::kSameDevice) == Path::kSameDevice);
  CHECK(cuda.calls["cuPointerGetAttributes"] == asked);
  owner->Free(another);
  CHECK(owner->PathOf({mine.base, heap.data(), 64}, Path::kMapped) == Path::kPinnedStaging);
  CHECK(owner->PathOf({static_cast<std::byte*>(pinned), mine.base, 64}, Path::kSameDevice) ==
        Path::kDeviceCopy);
  owner->Free(mine);
  other->Free(theirs);
}

TEST_CASE("a handle that is imported twice is released twice", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto owner = Gpu(cuda, 0), reader = Gpu(cuda, 0);
  const abi::Address user = cuda.Malloc(0, 8192);
  const auto import = [&] {
    return *reader->Import(
        *owner->ExportTo((*owner->Describe(At(user), 8192))[0], ExportWay::kIpc));
  };
  const memory::Mapping first = import(), second = import();
  CHECK(first.base == second.base);
  reader->Release(first);
  const int seen = 5;
  cuda.Write(reinterpret_cast<abi::Address>(second.base), &seen, 4);
  reader->Release(second);
  CHECK(cuda.live() == 1);
}

TEST_CASE("an import that cannot be says what is wrong and leaves nothing", "[gpu][hostile]") {
  FakeDriver& cuda = FakeDriver::Reset(2);
  const auto owner = Gpu(cuda, 0), reader = Gpu(cuda, 1);
  const Extent mine = *owner->Allocate(2 * kMiB);
  const size_t live = cuda.live();
  const auto exported = [&] { return *owner->ExportTo(mine, ExportWay::kVmmDescriptor); };
  Export lies = exported();
  lies.bytes = 4 * kMiB;  // more than there is
  CHECK_FALSE(reader->Import(lies).ok());
  lies = exported();
  lies.bytes = 1000;
  CHECK(absl::IsOutOfRange(reader->Import(lies).status()));
  lies = exported();
  lies.bytes = 0;
  CHECK(absl::IsOutOfRange(reader->Import(lies).status()));
  Export handle =
      *owner->ExportTo((*owner->Describe(At(cuda.Malloc(0, 4096)), 64))[0], ExportWay::kIpc);
  handle.bytes = 4097;
  CHECK(absl::IsOutOfRange(reader->Import(handle).status()));
  handle.handle = {};
  handle.bytes = 1;
  CHECK_FALSE(reader->Import(handle).ok());
  Export memfd;
  memfd.fd = memfd_create("x", MFD_CLOEXEC);
  CHECK(absl::IsFailedPrecondition(reader->Import(memfd).status()));
  // GPUs that do not reach each other.
  cuda.peers = false;
  CHECK(absl::IsUnimplemented(reader->Import(exported()).status()));
  CHECK(cuda.live() == live + 1);
  CHECK(reader->health().ok());
  owner->Free(mine);
}

TEST_CASE("a GPU that is full says so, and goes on", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  cuda.memory_bytes = 8 * kMiB;
  const auto gpu = Gpu(cuda, 0);
  const auto all = gpu->Allocate(8 * kMiB);
  REQUIRE(all.ok());
  const auto more = gpu->Allocate(1);
  CHECK(absl::IsResourceExhausted(more.status()));
  CHECK(std::string(more.status().message()).find("CUDA_ERROR_OUT_OF_MEMORY") != std::string::npos);
  gpu->Free(*all);
  const auto small = gpu->Allocate(1);
  REQUIRE(small.ok());
  gpu->Free(*small);
  CHECK_FALSE(gpu->Allocate(0).ok());
  CHECK_FALSE(gpu->Allocate(SIZE_MAX).ok());
  // One step fails: what the steps before made is given back.
  for (const char* step : {"cuMemAddressReserve", "cuMemMap", "cuMemSetAccess"}) {
    cuda.Fail(step, abi::kUnknown);
    CHECK(absl::IsInternal(gpu->Allocate(64).status()));
    CHECK(cuda.live() == 0);
    CHECK(cuda.reservations_.empty());
  }
}

TEST_CASE("a fault that stays is the device's health", "[gpu]") {
  FakeDriver& cuda = FakeDriver::Reset(1);
  const auto gpu = Gpu(cuda, 0);
  CHECK(gpu->health().ok());
  cuda.Fail("cuMemCreate", abi::kEccUncorrectable);
  CHECK(absl::IsDataLoss(gpu->Allocate(64).status()));
  CHECK(absl::IsDataLoss(gpu->health()));
  CHECK(absl::IsNotFound(CudaDevice::Create(cuda.table(), 1).status()));
}

}  // namespace
}  // namespace verbena::gpu
