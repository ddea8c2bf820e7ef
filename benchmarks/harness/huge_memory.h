#pragma once
// Memory on transparent huge pages where the kernel gives them, faulted in.
#include <sys/mman.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <new>

namespace verbena::benchmarks {

class HugeMemory {
 public:
  explicit HugeMemory(size_t bytes) : bytes_(bytes), mapped_(bytes + 2 * kHugeBytes) {
    void* p = mmap(nullptr, mapped_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) throw std::bad_alloc();
    base_ = static_cast<char*>(p);
    madvise(base_, mapped_, MADV_HUGEPAGE);
    const uintptr_t aligned =
        (reinterpret_cast<uintptr_t>(base_) + kHugeBytes - 1) & ~(kHugeBytes - 1);
    data_ = reinterpret_cast<char*>(aligned);
    std::memset(data_, 1, bytes_);
  }
  ~HugeMemory() { munmap(base_, mapped_); }
  HugeMemory(const HugeMemory&) = delete;
  char* data() const { return data_; }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr uintptr_t kHugeBytes = 2 << 20;
  size_t bytes_;
  size_t mapped_;
  char* base_ = nullptr;
  char* data_ = nullptr;
};

}  // namespace verbena::benchmarks
