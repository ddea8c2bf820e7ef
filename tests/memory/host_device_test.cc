#include "rpc/memory/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <vector>

#include "absl/strings/match.h"
#include "rpc/memory/copy_now.h"
#include "rpc/memory/fake_device.h"
#include "rpc/memory/pool.h"
#include "tests/catch.h"

namespace verbena::memory {
namespace {

bool IsOpen(int fd) { return fcntl(fd, F_GETFD) >= 0; }

int Memfd(size_t bytes, int seals) {
  const int fd = memfd_create("verbena-test", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  REQUIRE(ftruncate(fd, static_cast<off_t>(bytes)) == 0);
  if (seals != 0) REQUIRE(fcntl(fd, F_ADD_SEALS, seals) == 0);
  return fd;
}

Export Offer(int fd, uint64_t offset, uint64_t bytes) {
  Export e;
  e.fd = fd;
  e.offset = offset;
  e.bytes = bytes;
  return e;
}

TEST_CASE("a slab exported and imported is the same memory, read-only", "[host]") {
  absl::StatusOr<Block> block = AllocateBlock(100000);
  REQUIRE(block.ok());
  Device& host = HostDevice();
  const Extent extent = host.Describe(block->data(), 1)->front();
  CHECK(extent.buffer_id == block->region()->buffer_id());
  absl::StatusOr<Export> exported = host.ExportTo(extent, ExportWay::kMemfd);
  REQUIRE(exported.ok());
  const int fd = exported->fd;
  absl::StatusOr<Mapping> mapping = host.Import(*exported);
  REQUIRE(mapping.ok());
  CHECK_FALSE(IsOpen(fd));
  block->data()[99999] = std::byte{5};
  CHECK(mapping->base[block->data() - extent.base + 99999] == std::byte{5});
  CHECK(mapping->bytes == extent.bytes);
  host.Release(*mapping);
}

TEST_CASE("memory that its owner could shrink is not imported", "[host][hostile]") {
  const int fd = Memfd(8192, 0);
  CHECK(absl::IsFailedPrecondition(HostDevice().Import(Offer(fd, 0, 8192)).status()));
  CHECK_FALSE(IsOpen(fd));
  CHECK(absl::IsFailedPrecondition(
      HostDevice().Import(Offer(open("/dev/zero", O_RDONLY | O_CLOEXEC), 0, 4096)).status()));
  CHECK(absl::IsFailedPrecondition(HostDevice().Import(Offer(-1, 0, 4096)).status()));
}

TEST_CASE("an extent outside its file is not imported", "[host][hostile]") {
  const auto import = [](uint64_t offset, uint64_t bytes) {
    const int fd = Memfd(8192, F_SEAL_SHRINK);
    absl::StatusOr<Mapping> mapping = HostDevice().Import(Offer(fd, offset, bytes));
    CHECK_FALSE(IsOpen(fd));
    if (mapping.ok()) HostDevice().Release(*mapping);
    return mapping.status();
  };
  CHECK(import(0, 8192).ok());
  CHECK(import(4096, 4096).ok());
  CHECK(absl::IsOutOfRange(import(0, 8193)));
  CHECK(absl::IsOutOfRange(import(0, 0)));
  CHECK(absl::IsOutOfRange(import(4096, 4097)));
  CHECK(absl::IsOutOfRange(import(100, 100)));
  CHECK(absl::IsOutOfRange(import(UINT64_MAX - 4095, 8192)));
  CHECK(absl::IsOutOfRange(import(0, UINT64_MAX)));
}

TEST_CASE("ways that the host has not are refused, and descriptors closed", "[host]") {
  std::vector<std::byte> memory(64);
  const Extent extent{memory.data(), memory.size(), 1};
  CHECK(HostDevice().ExportTo(extent, ExportWay::kProcess)->address ==
        reinterpret_cast<uintptr_t>(memory.data()));
  CHECK(absl::IsFailedPrecondition(HostDevice().ExportTo(extent, ExportWay::kMemfd).status()));
  CHECK(absl::IsUnimplemented(HostDevice().ExportTo(extent, ExportWay::kDmaBuf).status()));
  Export e = Offer(Memfd(4096, F_SEAL_SHRINK), 0, 4096);
  e.way = ExportWay::kIpc;
  CHECK(absl::IsUnimplemented(HostDevice().Import(e).status()));
  CHECK_FALSE(IsOpen(e.fd));
}

TEST_CASE("foreign memory is described by itself with a new id each time", "[host]") {
  std::vector<std::byte> memory(64);
  const Extent a = HostDevice().Describe(memory.data(), 64)->front();
  const Extent b = HostDevice().Describe(memory.data(), 64)->front();
  CHECK(a.base == memory.data());
  CHECK(a.buffer_id != b.buffer_id);
  CHECK(absl::IsInvalidArgument(HostDevice().Describe(nullptr, 64).status()));
  CHECK(absl::IsInvalidArgument(HostDevice().Describe(memory.data(), SIZE_MAX).status()));
}

TEST_CASE("devices are found by name or refused by name", "[device]") {
  CHECK(*FindDevice(::verbena::Device::Host()) == &HostDevice());
  FakeDevice::Install(46);
  const auto says = [](::verbena::Device where, absl::string_view begin, absl::string_view end) {
    const std::string message(FindDevice(where).status().message());
    INFO(message);
    CHECK(absl::StartsWith(message, begin));
    CHECK(absl::EndsWith(message, end));
    CHECK(absl::StrContains(message, "fake:46") == (where.index() >= 0));
  };
  says(::verbena::Device::Cuda(3),
       "no device cuda:3 in this process, which knows host, fake:", "; UseGpus() makes GPUs known");
  says(::verbena::Device::Cuda(-1), "no device cuda:-1 in this process: numbers begin with 0", "");
  SayNoGpus("cuda: no driver");
  says(::verbena::Device::Cuda(0), "no device cuda:0 in this process, which knows host, fake:",
       "; UseGpus() said: cuda: no driver");
  SayNoGpus("");
  says(::verbena::Device::Fake(77), "no device fake:77 in this process, which knows host, ", "");
}

TEST_CASE("a path is found by each name that one has, and by no other", "[device]") {
  for (const Path path : {Path::kNone, Path::kLocal, Path::kNvlinkIpc, Path::kPinnedStaging}) {
    CHECK(*PathFromName(PathName(path)) == path);
  }
  for (const char* const name : {"", "unknown", "NVLINK-IPC", "nvlink"}) {
    const absl::Status status = PathFromName(name).status();
    CHECK(absl::IsInvalidArgument(status));
    CHECK(absl::StrContains(status.message(), "none, local, mapped"));
    CHECK(absl::StrContains(status.message(), "pinned-staging"));
  }
}

TEST_CASE("an allocation of the host device is writable memory", "[host]") {
  absl::StatusOr<Extent> extent = HostDevice().Allocate(10000);
  REQUIRE(extent.ok());
  std::memset(extent->base, 1, extent->bytes);
  HostDevice().Free(*extent);
  CHECK_FALSE(HostDevice().Allocate(SIZE_MAX / 2).ok());
}

}  // namespace
}  // namespace verbena::memory
