#pragma once
// A paged cache: for each layer one tensor of equal pages. A page of the same number in every layer
// belongs to the same tokens, so that one table of numbers, the block table, says where a sequence
// is. Any thread.
#include <cstdint>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "verbena/verbena.h"

namespace verbena::examples {

class Pages {
 public:
  // RESOURCE_EXHAUSTED: `device` has no room for them.
  static absl::StatusOr<std::unique_ptr<Pages>> Create(Device device, uint32_t layers,
                                                       uint32_t count, uint32_t block_bytes);

  // uint8 [count, block_bytes].
  const Tensor& layer(uint32_t index) const { return layers_[index]; }
  uint32_t layers() const { return static_cast<uint32_t>(layers_.size()); }
  uint32_t count() const { return count_; }
  uint32_t block_bytes() const { return block_bytes_; }

  // Pages that lie side by side, or wherever they are free, in an order that looks random.
  // RESOURCE_EXHAUSTED: so many are not free.
  absl::StatusOr<std::vector<int64_t>> TakeRun(uint32_t count);
  absl::StatusOr<std::vector<int64_t>> TakeScattered(uint32_t count);
  void Free(const std::vector<int64_t>& pages);
  uint32_t free() const;

 private:
  Pages(uint32_t count, uint32_t block_bytes)
      : count_(count), block_bytes_(block_bytes), taken_(count) {}

  const uint32_t count_, block_bytes_;
  std::vector<Tensor> layers_;
  mutable absl::Mutex mutex_;
  std::vector<bool> taken_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace verbena::examples
