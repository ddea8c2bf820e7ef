#pragma once
// Private buffers that frames are filled in: one stack for all links, the one used last first, so
// it is in the cache.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <vector>

#include "rpc/base/limits.h"

namespace verbena::fabric::shm {

class SendBuffers {
 public:
  // Each link in a tick holds at most a few. Beyond this, links wait for OnSendable.
  static constexpr uint32_t kBuffersMax = 1024;

  // ~0u when kBuffersMax are out.
  uint32_t Acquire() {
    if (free_.empty() && !Grow()) return ~0u;
    const uint32_t token = free_.back();
    free_.pop_back();
    return token;
  }
  void Release(uint32_t token) { free_.push_back(token); }
  std::byte* Data(uint32_t token) const { return data_[token]; }

 private:
  static constexpr uint32_t kPerBlock = 16;
  // A line more than a frame: first lines do not fall into one set of the cache.
  static constexpr size_t kStride = limits::kSegmentBytes + 64;
  struct Free {
    void operator()(std::byte* block) const { free(block); }
  };

  bool Grow() {
    const auto first = static_cast<uint32_t>(blocks_.size()) * kPerBlock;
    if (first >= kBuffersMax) return false;
    auto* block = static_cast<std::byte*>(aligned_alloc(64, kPerBlock * kStride));
    if (block == nullptr) return false;
    blocks_.emplace_back(block);
    free_.reserve(first + kPerBlock);
    for (uint32_t i = 0; i < kPerBlock; ++i) {
      data_.push_back(block + i * kStride);
      free_.push_back(first + i);
    }
    return true;
  }

  std::vector<std::unique_ptr<std::byte, Free>> blocks_;
  std::vector<std::byte*> data_;  // by token
  std::vector<uint32_t> free_;
};

}  // namespace verbena::fabric::shm
