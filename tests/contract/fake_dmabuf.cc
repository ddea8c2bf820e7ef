#include "tests/contract/fake_dmabuf.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <map>
#include <mutex>
#include <utility>

#include "rpc/fabric/verbs/device_memory.h"

namespace verbena::fabric::verbs {
namespace {

constexpr uint64_t kPageBytes = 4096;

struct Mapped {
  void* base = nullptr;
  size_t bytes = 0;
};
std::mutex mutex;
std::map<ibv_mr*, Mapped> mapped;

ibv_mr* Fails(int error) {
  errno = error;
  return nullptr;
}

ibv_mr* RegisterDmaBuf(ibv_pd* pd, uint64_t offset, size_t bytes, uint64_t iova, int fd,
                       int access) {
  ++FakeDmaBuf::asked;
  if (const int error = FakeDmaBuf::refusal; error != 0) return Fails(error);
  if (offset % kPageBytes != iova % kPageBytes || (access & IBV_ACCESS_MW_BIND) != 0) {
    ++FakeDmaBuf::bad_offset;
    return Fails(EINVAL);
  }
  const uint64_t begin = offset / kPageBytes * kPageBytes;
  const size_t length = offset - begin + bytes;
  void* const base =
      mmap(nullptr, length, PROT_READ | PROT_WRITE, MAP_SHARED, fd, static_cast<off_t>(begin));
  if (base == MAP_FAILED) return nullptr;
  auto* const data = static_cast<std::byte*>(base) + (offset - begin);
  ibv_mr* const mr = ibv_reg_mr_iova(pd, data, bytes, iova, access);
  if (mr == nullptr) {
    const int error = errno;
    munmap(base, length);
    return Fails(error);
  }
  const std::lock_guard lock(mutex);
  mapped[mr] = {base, length};
  ++FakeDmaBuf::live;
  return mr;
}

ibv_mr* RegisterAddress(ibv_pd* pd, void*, size_t bytes, int access) {
  ++FakeDmaBuf::asked_by_address;
  if (const int error = FakeDmaBuf::peermem_refusal; error != 0) return Fails(error);
  void* const base =
      mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  ibv_mr* const mr = ibv_reg_mr(pd, base, bytes, access);
  const std::lock_guard lock(mutex);
  mapped[mr] = {base, bytes};
  ++FakeDmaBuf::live;
  return mr;
}

int Deregister(ibv_mr* mr) {
  Mapped gone;
  {
    const std::lock_guard lock(mutex);
    gone = std::exchange(mapped[mr], Mapped());
    mapped.erase(mr);
  }
  const int result = ibv_dereg_mr(mr);
  munmap(gone.base, gone.bytes);
  --FakeDmaBuf::live;
  return result;
}

}  // namespace

std::atomic<int> FakeDmaBuf::refusal{0};
std::atomic<bool> FakeDmaBuf::peermem{false};
std::atomic<int> FakeDmaBuf::peermem_refusal{0};
std::atomic<int> FakeDmaBuf::asked{0}, FakeDmaBuf::asked_by_address{0}, FakeDmaBuf::live{0},
    FakeDmaBuf::bad_offset{0};

FakeDmaBuf::FakeDmaBuf() {
  live = 0;  // what is kept for memory of other tests is theirs
  refusal = peermem_refusal = asked = asked_by_address = bad_offset = 0;
  peermem = false;
  TheDeviceCalls() = {RegisterDmaBuf, RegisterAddress, Deregister,
                      [] { return FakeDmaBuf::peermem.load(); }};
}

// Registrations that are kept for their allocations outlive it: their end stays ours.
FakeDmaBuf::~FakeDmaBuf() {
  refusal = ENOTTY;
  peermem = false;
}

}  // namespace verbena::fabric::verbs
