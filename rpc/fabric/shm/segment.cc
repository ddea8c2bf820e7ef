#include "rpc/fabric/shm/segment.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"

// Newer than Debian 12's headers; Linux 5.1.
#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif

namespace verbena::fabric::shm {
namespace {

constexpr size_t kMappedBytes = kRingBytes + kSegmentFileBytes;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

absl::Status SystemError(absl::string_view what) {
  return absl::ResourceExhaustedError(absl::StrCat("shm: ", what, ": ", strerror(errno)));
}

}  // namespace

absl::StatusOr<uint64_t> CheckSealed(int fd, int seals) {
  const int has = fcntl(fd, F_GET_SEALS);
  if (has < 0) return absl::InvalidArgumentError("shm: the peer's descriptor is not a memfd");
  if ((has & seals) != seals) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: the peer's memfd has seals ", has, ", needs ", seals));
  }
  // A hole in huge pages raises SIGBUS when none is free, whatever was mapped before.
  struct statfs system;
  if (fstatfs(fd, &system) != 0) return SystemError("fstatfs");
  if (system.f_type != TMPFS_MAGIC) {
    return absl::InvalidArgumentError("shm: the peer's memfd is not of tmpfs: huge pages");
  }
  struct stat status;
  if (fstat(fd, &status) != 0) return SystemError("fstat");
  return static_cast<uint64_t>(status.st_size);
}

absl::StatusOr<Segment> Segment::Map(int fd, int protection) {
  void* base =
      mmap(nullptr, kMappedBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (base == MAP_FAILED) return SystemError("mmap");
  Segment segment;
  segment.base_ = static_cast<std::byte*>(base);
  void* second = segment.base_ + kRingBytes;
  if (mmap(base, kRingBytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED ||
      mmap(second, kSegmentFileBytes, protection, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
    return SystemError("mmap of a link's memory");
  }
  return segment;
}

absl::StatusOr<Segment> Segment::Create() {
  const int fd = memfd_create("verbena-link", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return SystemError("memfd_create");
  if (ftruncate(fd, kSegmentFileBytes) != 0) {
    close(fd);
    return SystemError("ftruncate");
  }
  auto segment = Map(fd, PROT_READ | PROT_WRITE);
  // The mapping made before F_SEAL_FUTURE_WRITE stays writable, no other can be.
  if (segment.ok() && fcntl(fd, F_ADD_SEALS, kSeals) != 0) segment = SystemError("F_ADD_SEALS");
  if (!segment.ok()) {
    close(fd);
    return segment.status();
  }
  segment->fd_ = fd;
  return segment;
}

absl::StatusOr<Segment> Segment::Open(int fd) {
  const auto bytes = CheckSealed(fd, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL);
  absl::StatusOr<Segment> segment = absl::UnknownError("not mapped");
  if (!bytes.ok()) {
    segment = bytes.status();
  } else if (*bytes != kSegmentFileBytes) {
    segment = absl::InvalidArgumentError(absl::StrCat("shm: the peer's link memory has ", *bytes,
                                                      " bytes, needs ", kSegmentFileBytes));
  } else {
    segment = Map(fd, PROT_READ);
  }
  close(fd);
  return segment;
}

Segment::~Segment() {
  if (base_ != nullptr) munmap(base_, kMappedBytes);
  if (fd_ >= 0) close(fd_);
}

}  // namespace verbena::fabric::shm
