#include "rpc/gpu/readiness.h"

#include "rpc/gpu/cuda_device.h"

namespace verbena::gpu {
namespace {

constexpr size_t kPageBytes = 4096;
constexpr size_t kWords = kPageBytes / sizeof(uint32_t);
static_assert(sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

}  // namespace

absl::StatusOr<ReadyWord> ReadyWords::Take() {
  absl::MutexLock lock(&mutex_);
  if (free_.empty()) {
    std::erase_if(awaited_, [this](const ReadyWord& word) ABSL_NO_THREAD_SAFETY_ANALYSIS {
      if (word.word->load(std::memory_order_acquire) == 0) return false;
      free_.push_back(word);
      return true;
    });
  }
  if (free_.empty()) {
    if (absl::Status s = AddPage(); !s.ok()) return s;
  }
  const ReadyWord word = free_.back();
  free_.pop_back();
  word.word->store(0, std::memory_order_relaxed);
  return word;
}

absl::Status ReadyWords::AddPage() {
  void* page = nullptr;
  abi::Result r = driver_.cuMemHostAlloc(&page, kPageBytes, abi::kHostAllocPortable);
  if (r != abi::kSuccess) return StatusOf(driver_, r, "cuda: page-locking a page");
  abi::Address address = 0;
  r = driver_.cuMemHostGetDevicePointer_v2(&address, page, 0);
  if (r != abi::kSuccess) {
    driver_.cuMemFreeHost(page);
    return StatusOf(driver_, r, "cuda: finding a page");
  }
  auto* const words = static_cast<uint32_t*>(page);
  for (size_t i = 0; i < kWords; ++i) {
    free_.push_back({new (words + i) std::atomic<uint32_t>(0), address + i * sizeof(uint32_t)});
  }
  return absl::OkStatus();
}

void ReadyWords::Give(const ReadyWord& word) {
  absl::MutexLock lock(&mutex_);
  const bool written = word.word->load(std::memory_order_acquire) != 0;
  (written ? free_ : awaited_).push_back(word);
}

void ReadyWords::GiveUnused(const ReadyWord& word) {
  absl::MutexLock lock(&mutex_);
  free_.push_back(word);
}

absl::Status WordReadiness::Look() const { return ready() ? absl::OkStatus() : device_.Probe(); }

}  // namespace verbena::gpu
