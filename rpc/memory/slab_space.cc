#include "rpc/memory/slab_space.h"

#include <algorithm>
#include <bit>

#include "rpc/base/check.h"
#include "rpc/memory/pool.h"

namespace verbena::memory {

SlabSpace::SlabSpace(SlabPool& pool, std::shared_ptr<Slab> slab)
    : pool_(pool),
      slab_(std::move(slab)),
      pages_(static_cast<uint32_t>(slab_->bytes() / kPageBytes)),
      small_(slab_->bytes() / kPageBytes) {
  partly_free_.fill(Buddy::kNone);
}

size_t SlabSpace::ClassOf(size_t bytes) {
  return static_cast<size_t>(std::bit_width((std::max<size_t>(bytes, 1) - 1) / kSlotBytesMin));
}

uint64_t SlabSpace::AllSlots(size_t size_class) {
  const uint32_t slots = kPageBytes / (kSlotBytesMin << size_class);
  return slots == 64 ? ~uint64_t{0} : (uint64_t{1} << slots) - 1;
}

uint64_t SlabSpace::Rounded(size_t bytes) {
  const size_t size_class = ClassOf(bytes);
  if (size_class < kClasses) return kSlotBytesMin << size_class;
  return (bytes + kPageBytes - 1) / kPageBytes * kPageBytes;
}

std::byte* SlabSpace::Allocate(size_t bytes) {
  const size_t size_class = ClassOf(bytes);
  if (size_class >= kClasses) {
    const uint32_t page = pages_.Allocate(static_cast<uint32_t>(Rounded(bytes) / kPageBytes));
    return page == Buddy::kNone ? nullptr : slab_->base() + uint64_t{page} * kPageBytes;
  }
  uint32_t page = partly_free_[size_class];
  if (page == Buddy::kNone) {
    page = pages_.Allocate(1);
    if (page == Buddy::kNone) return nullptr;
    small_[page].free_slots = AllSlots(size_class);
    Link(size_class, page);
  }
  SmallPage& small = small_[page];
  const int slot = std::countr_zero(small.free_slots);
  small.free_slots &= small.free_slots - 1;
  if (small.free_slots == 0) Unlink(size_class, page);
  return slab_->base() + uint64_t{page} * kPageBytes +
         (static_cast<uint64_t>(slot) * kSlotBytesMin << size_class);
}

void SlabSpace::Give(std::byte* data, size_t bytes) {
  const auto offset = static_cast<uint64_t>(data - slab_->base());
  const auto page = static_cast<uint32_t>(offset / kPageBytes);
  const size_t size_class = ClassOf(bytes);
  if (size_class >= kClasses) {
    pages_.Free(page, static_cast<uint32_t>(Rounded(bytes) / kPageBytes));
    return;
  }
  SmallPage& small = small_[page];
  const uint64_t slot = uint64_t{1} << (offset % kPageBytes / (kSlotBytesMin << size_class));
  VERBENA_CHECK((small.free_slots & slot) == 0, "page ", page, ": slot is free already");
  if (small.free_slots == 0) Link(size_class, page);
  small.free_slots |= slot;
  if (small.free_slots == AllSlots(size_class)) {
    Unlink(size_class, page);
    small.free_slots = 0;
    pages_.Free(page, 1);
  }
}

void SlabSpace::Free(std::byte* data, size_t bytes) noexcept { pool_.Give(*this, data, bytes); }

void SlabSpace::Link(size_t size_class, uint32_t page) {
  uint32_t& head = partly_free_[size_class];
  small_[page].previous = Buddy::kNone;
  small_[page].next = head;
  if (head != Buddy::kNone) small_[head].previous = page;
  head = page;
}

void SlabSpace::Unlink(size_t size_class, uint32_t page) {
  SmallPage& small = small_[page];
  if (small.next != Buddy::kNone) small_[small.next].previous = small.previous;
  (small.previous != Buddy::kNone ? small_[small.previous].next : partly_free_[size_class]) =
      small.next;
  small.previous = small.next = Buddy::kNone;
}

}  // namespace verbena::memory
