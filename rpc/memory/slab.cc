#include "rpc/memory/slab.h"

#include <fcntl.h>
#include <linux/mempolicy.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <limits>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/memory/known_regions.h"

// Newer than Debian 12's headers.
#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25
#endif
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace verbena::memory {
namespace {

// Linux on x86-64 has no others.
constexpr uint64_t kSmallPageBytes = 4096;

absl::Status Exhausted(absl::string_view what, uint64_t bytes) {
  return absl::ResourceExhaustedError(
      absl::StrCat("a slab of ", bytes, " bytes: ", what, ": ", std::strerror(errno)));
}

// Maps the descriptor at a multiple of a huge page, without which the kernel uses none.
std::byte* MapAligned(int fd, uint64_t bytes) {
  const uint64_t reserve = bytes + Slab::kAlignment;
  void* const reserved =
      mmap(nullptr, reserve, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return nullptr;
  const auto start = reinterpret_cast<uintptr_t>(reserved);
  const uintptr_t base = (start + Slab::kAlignment - 1) / Slab::kAlignment * Slab::kAlignment;
  void* const mapped = mmap(reinterpret_cast<void*>(base), bytes, PROT_READ | PROT_WRITE,
                            MAP_SHARED | MAP_FIXED, fd, 0);
  if (mapped == MAP_FAILED) {
    munmap(reserved, reserve);
    return nullptr;
  }
  if (base > start) munmap(reserved, base - start);
  const uintptr_t end = base + bytes;
  if (start + reserve > end) munmap(reinterpret_cast<void*>(end), start + reserve - end);
  return static_cast<std::byte*>(mapped);
}

void PreferNode(std::byte* base, uint64_t bytes, int node) {
  unsigned long mask[16] = {};
  if (node < 0 || static_cast<size_t>(node) >= 8 * sizeof(mask)) return;
  mask[static_cast<size_t>(node) / 64] = 1ul << (node % 64);
  // Refused in some containers: the memory is then where the thread that faults it in runs, which
  // is as good as it gets.
  syscall(SYS_mbind, base, bytes, MPOL_PREFERRED, mask, 8 * sizeof(mask), 0);
}

// Succeeds only when all of it is huge now, also where shared memory gets no huge pages by itself.
bool Collapse(std::byte* base, uint64_t bytes) { return madvise(base, bytes, MADV_COLLAPSE) == 0; }

// One small page in each huge one is enough for the kernel to make them huge, and all that it then
// has to copy: 0.2 s per GiB, where filling them with small pages first takes 2.5 to 4.
bool FaultInHuge(std::byte* base, uint64_t bytes) {
  for (uint64_t at = 0; at < bytes; at += Slab::kAlignment) {
    if (madvise(base + at, kSmallPageBytes, MADV_POPULATE_WRITE) != 0) return false;
  }
  return Collapse(base, bytes);
}

// Every page is there afterwards, so that no access can fail later, when a full system could only
// raise SIGBUS.
bool FaultIn(int fd, std::byte* base, uint64_t bytes) {
  if (madvise(base, bytes, MADV_POPULATE_WRITE) == 0) return true;
  if (errno != EINVAL) return false;
  // Before Linux 5.14: reserve the pages of the file, then touch each.
  errno = posix_fallocate(fd, 0, static_cast<off_t>(bytes));
  if (errno != 0) return false;
  for (uint64_t at = 0; at < bytes; at += kSmallPageBytes)
    *const_cast<volatile std::byte*>(base + at) = std::byte{0};
  return true;
}

// A peer that maps the memory can neither shrink it under us nor write to it; later kernels only,
// else as far as it goes.
bool Seal(int fd) {
  constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  return fcntl(fd, F_ADD_SEALS, kSeals | F_SEAL_FUTURE_WRITE) == 0 ||
         fcntl(fd, F_ADD_SEALS, kSeals) == 0;
}

}  // namespace

absl::StatusOr<std::shared_ptr<Slab>> Slab::Create(uint64_t bytes, int node) {
  constexpr uint64_t kBytesMax = std::numeric_limits<int64_t>::max() / 2;
  if (bytes == 0 || bytes > kBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a slab of ", bytes, " bytes; at most ", kBytesMax));
  }
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  const int fd = memfd_create("verbena-slab", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Exhausted("memfd_create", bytes);
  std::byte* const base =
      ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? MapAligned(fd, bytes) : nullptr;
  if (base == nullptr) {
    const absl::Status status = Exhausted("mapping it", bytes);
    close(fd);
    return status;
  }
  std::shared_ptr<Slab> slab(new Slab(Extent{base, bytes, NextBufferId()}, fd));
  PreferNode(base, bytes, node);
  madvise(base, bytes, MADV_HUGEPAGE);
  slab->huge_pages_ = FaultInHuge(base, bytes);
  if (!FaultIn(fd, base, bytes)) return Exhausted("faulting it in", bytes);
  if (!slab->huge_pages_) slab->huge_pages_ = Collapse(base, bytes);
  if (!Seal(fd)) return Exhausted("sealing it", bytes);
  return slab;
}

Slab::Slab(Extent extent, int fd) : Region(HostDevice(), extent, RegionKind::kSlab, fd, 0) {}

Slab::~Slab() {
  munmap(base(), bytes());
  close(fd());
}

}  // namespace verbena::memory
