#include "rpc/fabric/verbs/copies.h"

#include <sys/mman.h>
#include <sys/uio.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/synchronization/mutex.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"

namespace verbena::fabric::verbs {
namespace {

// Whole pages of its own, which a fork keeps out of children.
class Copy {
 public:
  static absl::StatusOr<std::unique_ptr<Copy>> Create(size_t bytes) {
    void* const data =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return CallFailed("mmap", errno);
    return std::unique_ptr<Copy>(new Copy(static_cast<std::byte*>(data), bytes));
  }
  ~Copy() { munmap(data_, bytes_); }
  Copy(const Copy&) = delete;
  Copy& operator=(const Copy&) = delete;

  std::byte* data() const { return data_; }

  // By the kernel, which says where nothing is instead of ending the process.
  absl::Status Fill(const std::byte* from) {
    constexpr size_t kSlice = size_t{1} << 30;
    for (size_t at = 0; at < bytes_;) {
      iovec to{data_ + at, std::min(bytes_ - at, kSlice)};
      iovec source{const_cast<std::byte*>(from) + at, to.iov_len};
      const ssize_t got = process_vm_readv(getpid(), &to, 1, &source, 1, 0);
      if (got <= 0) return CallFailed("process_vm_readv", got == 0 ? EFAULT : errno);
      at += static_cast<size_t>(got);
    }
    return absl::OkStatus();
  }

 private:
  Copy(std::byte* data, size_t bytes) : data_(data), bytes_(bytes) {}
  std::byte* const data_;
  const size_t bytes_;
};

// Those that are registered.
struct Copies {
  absl::Mutex mutex;
  absl::flat_hash_map<ibv_mr*, std::unique_ptr<Copy>> by_mr ABSL_GUARDED_BY(mutex);
};
Copies& TheCopies() {
  static Copies* const copies = new Copies;
  return *copies;
}

}  // namespace

absl::StatusOr<ibv_mr*> RegisterCopy(ibv_pd* pd, const std::byte* data, size_t bytes) {
  absl::StatusOr<std::unique_ptr<Copy>> copy = Copy::Create(bytes);
  if (!copy.ok()) return copy.status();
  if (absl::Status filled = (*copy)->Fill(data); !filled.ok()) return filled;
  const int access = IBV_ACCESS_REMOTE_READ;  // an int: the macro below mixes enumerations
  absl::StatusOr<ibv_mr*> mr = Made("ibv_reg_mr", ibv_reg_mr(pd, (*copy)->data(), bytes, access));
  if (!mr.ok()) return mr.status();
  absl::MutexLock lock(&TheCopies().mutex);
  TheCopies().by_mr[*mr] = *std::move(copy);
  return mr;
}

void DeregisterWithCopy(ibv_mr* mr) {
  std::unique_ptr<Copy> copy;
  {
    // Before the registration ends: another may then have its address.
    absl::MutexLock lock(&TheCopies().mutex);
    const auto found = TheCopies().by_mr.find(mr);
    if (found != TheCopies().by_mr.end()) {
      copy = std::move(found->second);
      TheCopies().by_mr.erase(found);
    }
  }
  const absl::Status status = ErrnoReturned("ibv_dereg_mr", ibv_dereg_mr(mr));
  if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
}

}  // namespace verbena::fabric::verbs
