#pragma once
// Buddy: which units of a slab are free. Bookkeeping only, beside the memory and not in it: peers
// can read the memory. A range of any number of units is cut out of the smallest free power of two
// and its tail given back, so that nothing but the order of frees fragments it.
#include <cstdint>
#include <vector>

namespace verbena::memory {

class Buddy {
 public:
  static constexpr uint32_t kNone = ~0u;

  // `units` is a power of two, all free.
  explicit Buddy(uint32_t units);

  // The first unit of `count` >= 1 adjacent ones, aligned to the next power of two >= count; kNone:
  // no room.
  uint32_t Allocate(uint32_t count);
  // Exactly a range that Allocate gave, or a part of one.
  void Free(uint32_t first, uint32_t count);
  uint32_t free_units() const { return free_units_; }

 private:
  static constexpr uint8_t kNotAHead = 0xff;
  struct Unit {
    uint32_t previous = kNone;
    uint32_t next = kNone;
    uint8_t order = kNotAHead;  // of the free chunk that begins here
  };
  void Push(uint32_t unit, uint32_t order);
  void Remove(uint32_t unit);
  void FreeChunk(uint32_t unit, uint32_t order);

  std::vector<Unit> units_;
  std::vector<uint32_t> heads_;  // by order
  uint32_t free_orders_ = 0;     // bit per order with a free chunk
  uint32_t free_units_ = 0;
};

}  // namespace verbena::memory
