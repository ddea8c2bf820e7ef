#pragma once
// Send buffers of one fabric: one mapping, cut into segments, touched as they are first used. A
// link may hold buffers only while more are free than it holds: so peers that do not read share
// what they block, and something is left for the others.
#include <cstddef>
#include <cstdint>
#include <vector>

namespace verbena::fabric::tcp {

class FramePool {
 public:
  FramePool();
  ~FramePool();
  FramePool(const FramePool&) = delete;
  FramePool& operator=(const FramePool&) = delete;

  // Whether a link that holds `held` buffers may have another.
  bool Allows(uint32_t held) const;
  uint32_t Acquire();
  void Release(uint32_t token) { free_.push_back(token); }
  std::byte* Data(uint32_t token) const;

 private:
  std::byte* base_ = nullptr;
  std::vector<uint32_t> free_;  // the last used first: its pages are in the caches
};

}  // namespace verbena::fabric::tcp
