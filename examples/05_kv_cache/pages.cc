#include "examples/05_kv_cache/pages.h"

#include <algorithm>
#include <numeric>
#include <random>

#include "absl/strings/str_cat.h"

namespace verbena::examples {

absl::StatusOr<std::unique_ptr<Pages>> Pages::Create(Device device, uint32_t layers, uint32_t count,
                                                     uint32_t block_bytes) {
  std::unique_ptr<Pages> pages(new Pages(count, block_bytes));
  for (uint32_t layer = 0; layer < layers; ++layer) {
    VERBENA_ASSIGN_OR_RETURN(Tensor tensor,
                             Tensor::Empty(kUInt8, Shape(count, block_bytes), device));
    pages->layers_.push_back(std::move(tensor));
  }
  return pages;
}

absl::StatusOr<std::vector<int64_t>> Pages::TakeRun(uint32_t count) {
  absl::MutexLock lock(&mutex_);
  const auto begin = std::search_n(taken_.begin(), taken_.end(), count, false);
  if (count == 0 || begin == taken_.end()) {
    return absl::ResourceExhaustedError(absl::StrCat("no ", count, " free pages side by side"));
  }
  std::vector<int64_t> run(count);
  std::iota(run.begin(), run.end(), begin - taken_.begin());
  std::fill_n(begin, count, true);
  return run;
}

absl::StatusOr<std::vector<int64_t>> Pages::TakeScattered(uint32_t count) {
  absl::MutexLock lock(&mutex_);
  std::vector<int64_t> all;
  for (uint32_t page = 0; page < count_; ++page) {
    if (!taken_[page]) all.push_back(page);
  }
  if (count == 0 || all.size() < count) {
    return absl::ResourceExhaustedError(absl::StrCat(count, " pages are not free"));
  }
  std::shuffle(all.begin(), all.end(), std::mt19937(count));
  all.resize(count);
  for (const int64_t page : all) taken_[static_cast<size_t>(page)] = true;
  return all;
}

void Pages::Free(const std::vector<int64_t>& pages) {
  absl::MutexLock lock(&mutex_);
  for (const int64_t page : pages) taken_[static_cast<size_t>(page)] = false;
}

uint32_t Pages::free() const {
  absl::MutexLock lock(&mutex_);
  return static_cast<uint32_t>(std::count(taken_.begin(), taken_.end(), false));
}

}  // namespace verbena::examples
