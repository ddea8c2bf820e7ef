#pragma once
// Words of page-locked memory that streams write when they get there: how the end of work on a GPU
// is seen without a call of the driver's.
#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rpc/gpu/driver.h"
#include "rpc/memory/device.h"

namespace verbena::gpu {

class CudaDevice;

struct ReadyWord {
  std::atomic<uint32_t>* word = nullptr;  // 0 until the stream writes 1
  abi::Address address = 0;               // the GPU's, of the same
};

// CUDA's names for the default streams, which belong to no context.
inline bool IsDefault(abi::Stream stream) { return reinterpret_cast<uintptr_t>(stream) <= 2; }

// Of those the one that is another stream on each thread.
inline bool IsPerThread(abi::Stream stream) { return reinterpret_cast<uintptr_t>(stream) == 2; }

// The words of one GPU. Any thread.
class ReadyWords {
 public:
  explicit ReadyWords(const Driver& driver) : driver_(driver) {}
  // The page-locked memory stays: streams may still write it.
  ~ReadyWords() = default;

  // One that says 0. In a context: page-locks memory now and then. Errors as StatusOf.
  absl::StatusOr<ReadyWord> Take();
  // It is used again once its stream has written it.
  void Give(const ReadyWord& word);
  // No stream will write it.
  void GiveUnused(const ReadyWord& word);

 private:
  absl::Status AddPage() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const Driver& driver_;
  absl::Mutex mutex_;
  std::vector<ReadyWord> free_ ABSL_GUARDED_BY(mutex_);
  std::vector<ReadyWord> awaited_ ABSL_GUARDED_BY(mutex_);  // given back before they were written
};

class WordReadiness final : public memory::Readiness {
 public:
  WordReadiness(CudaDevice& device, std::shared_ptr<ReadyWords> words, const ReadyWord& word)
      : device_(device), words_(std::move(words)), word_(word) {}
  ~WordReadiness() override { words_->Give(word_); }
  bool ready() const override { return word_.word->load(std::memory_order_acquire) != 0; }
  absl::Status Look() const override;

 private:
  CudaDevice& device_;
  const std::shared_ptr<ReadyWords> words_;
  const ReadyWord word_;
};

}  // namespace verbena::gpu
