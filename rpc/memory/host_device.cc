#include "rpc/memory/host_device.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "rpc/memory/host_copy_engine.h"
#include "rpc/memory/known_regions.h"

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#endif

namespace verbena::memory {
namespace {

absl::Status SystemError(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat(what, ": ", std::strerror(errno)));
}

// The file holds the extent, and always will.
absl::Status CheckFile(const Export& e) {
  const int seals = fcntl(e.fd, F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return absl::FailedPreconditionError("the peer's memory is no memfd sealed against shrinking");
  }
  struct stat file {};
  if (fstat(e.fd, &file) != 0) return SystemError("fstat of the peer's memory");
  const auto size = static_cast<uint64_t>(file.st_size);
  if (e.bytes == 0 || e.offset > size || e.bytes > size - e.offset || e.offset % 4096 != 0) {
    return absl::OutOfRangeError(absl::StrCat(e.bytes, " bytes from ", e.offset,
                                              " of the peer's memory, which has ", size,
                                              " and is mapped from multiples of 4096"));
  }
  return absl::OkStatus();
}

}  // namespace

Device& HostDevice() {
  static HostMemory* const host = new HostMemory;
  return *host;
}

absl::StatusOr<std::vector<Extent>> HostMemory::Describe(const void* pointer, size_t bytes) {
  const auto address = reinterpret_cast<uintptr_t>(pointer);
  if (pointer == nullptr || bytes == 0 || bytes > std::numeric_limits<uintptr_t>::max() - address) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes at address 0x", absl::Hex(address)));
  }
  if (const RegionRef known = FindKnownRegion(pointer, bytes, where())) {
    return std::vector<Extent>{known->extent()};
  }
  return std::vector<Extent>{
      {static_cast<std::byte*>(const_cast<void*>(pointer)), bytes, NextBufferId()}};
}

absl::StatusOr<Export> HostMemory::ExportTo(const Extent& extent, ExportWay way) {
  Export e;
  e.way = way;
  e.bytes = extent.bytes;
  e.buffer_id = extent.buffer_id;
  e.address = reinterpret_cast<uintptr_t>(extent.base);
  if (way == ExportWay::kProcess) return e;
  if (way != ExportWay::kMemfd) {
    return absl::UnimplementedError(
        absl::StrCat("host memory has no export way ", static_cast<int>(way)));
  }
  const RegionRef region = FindKnownRegion(extent.base, extent.bytes, where());
  if (region == nullptr || region->fd() < 0) {
    return absl::FailedPreconditionError(
        "the memory is not of the library's pools: it has no descriptor");
  }
  e.offset = region->fd_offset() + static_cast<uint64_t>(extent.base - region->base());
  e.fd = fcntl(region->fd(), F_DUPFD_CLOEXEC, 0);
  if (e.fd < 0) return SystemError("duplicating a slab's descriptor");
  return e;
}

absl::StatusOr<Mapping> HostMemory::Import(Export from_peer) {
  absl::Cleanup close_fd = [fd = from_peer.fd] {
    if (fd >= 0) close(fd);
  };
  if (from_peer.way != ExportWay::kMemfd) {
    return absl::UnimplementedError(absl::StrCat("host memory cannot be mapped by export way ",
                                                 static_cast<int>(from_peer.way)));
  }
  if (absl::Status s = CheckFile(from_peer); !s.ok()) return s;
  void* const base = mmap(nullptr, from_peer.bytes, PROT_READ, MAP_SHARED, from_peer.fd,
                          static_cast<off_t>(from_peer.offset));
  if (base == MAP_FAILED)
    return SystemError(absl::StrCat("mapping ", from_peer.bytes, " bytes of a peer"));
  madvise(base, from_peer.bytes, MADV_HUGEPAGE);
  return Mapping{this, static_cast<std::byte*>(base), from_peer.bytes};
}

void HostMemory::Populate(const Mapping& mapping, uint64_t offset, uint64_t bytes) {
  // Only speed is lost where the kernel cannot: pages then come at the first touch.
  madvise(mapping.base + offset, bytes, MADV_POPULATE_READ);
}

void HostMemory::Release(const Mapping& mapping) { munmap(mapping.base, mapping.bytes); }

absl::StatusOr<Extent> HostMemory::Allocate(size_t bytes) {
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (base == MAP_FAILED) return SystemError(absl::StrCat("mapping ", bytes, " bytes"));
  return Extent{static_cast<std::byte*>(base), bytes, NextBufferId()};
}

void HostMemory::Free(const Extent& extent) { munmap(extent.base, extent.bytes); }

std::unique_ptr<CopyEngine> HostMemory::MakeCopyEngine() {
  return std::make_unique<HostCopyEngine>();
}

}  // namespace verbena::memory
