#include "rpc/memory/buddy.h"

#include <algorithm>
#include <bit>

#include "rpc/base/check.h"

namespace verbena::memory {

Buddy::Buddy(uint32_t units)
    : units_(units), heads_(static_cast<size_t>(std::bit_width(units)), kNone) {
  VERBENA_CHECK(std::has_single_bit(units), units);
  Push(0, static_cast<uint32_t>(std::bit_width(units) - 1));
}

uint32_t Buddy::Allocate(uint32_t count) {
  VERBENA_DCHECK(count >= 1);
  if (count > free_units_) return kNone;
  const auto order = static_cast<uint32_t>(std::bit_width(count - 1));
  const uint32_t large_enough = order < 32 ? free_orders_ >> order << order : 0;
  if (large_enough == 0) return kNone;
  auto have = static_cast<uint32_t>(std::countr_zero(large_enough));
  const uint32_t unit = heads_[have];
  Remove(unit);
  while (have > order) {
    --have;
    Push(unit + (1u << have), have);
  }
  Free(unit + count, (1u << order) - count);
  return unit;
}

void Buddy::Free(uint32_t first, uint32_t count) {
  VERBENA_DCHECK(first + count <= units_.size(), first, " + ", count, " of ", units_.size());
  while (count > 0) {
    const int aligned = first == 0 ? 31 : std::countr_zero(first);
    const int fits = static_cast<int>(std::bit_width(count)) - 1;
    const auto order = static_cast<uint32_t>(std::min(aligned, fits));
    FreeChunk(first, order);
    first += 1u << order;
    count -= 1u << order;
  }
}

void Buddy::FreeChunk(uint32_t unit, uint32_t order) {
  VERBENA_CHECK(units_[unit].order == kNotAHead, "unit ", unit, " is free already");
  while ((1u << order) < units_.size()) {
    const uint32_t other = unit ^ (1u << order);
    if (units_[other].order != order) break;
    Remove(other);
    unit = std::min(unit, other);
    ++order;
  }
  Push(unit, order);
}

void Buddy::Push(uint32_t unit, uint32_t order) {
  units_[unit] = Unit{kNone, heads_[order], static_cast<uint8_t>(order)};
  if (heads_[order] != kNone) units_[heads_[order]].previous = unit;
  heads_[order] = unit;
  free_orders_ |= 1u << order;
  free_units_ += 1u << order;
}

void Buddy::Remove(uint32_t unit) {
  Unit& u = units_[unit];
  const uint32_t order = u.order;
  if (u.next != kNone) units_[u.next].previous = u.previous;
  (u.previous != kNone ? units_[u.previous].next : heads_[order]) = u.next;
  if (heads_[order] == kNone) free_orders_ &= ~(1u << order);
  free_units_ -= 1u << order;
  u = Unit{};
}

}  // namespace verbena::memory
