#pragma once
// What Block::Reset calls: the part of a pool that a block came from.
#include <cstddef>

namespace verbena::memory {

class BlockOwner {
 public:
  // Any thread; does not block. `bytes` as allocated.
  virtual void Free(std::byte* data, size_t bytes) noexcept = 0;

 protected:
  ~BlockOwner() = default;
};

}  // namespace verbena::memory
