#pragma once
// SlabSpace: one slab cut into blocks. From 4 KiB up a block is a range of pages (Buddy); below, a
// 64th to a half of a page whose slots of one size are a bitmap.
#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "rpc/memory/block_owner.h"
#include "rpc/memory/buddy.h"
#include "rpc/memory/slab.h"

namespace verbena::memory {

class SlabPool;

class SlabSpace final : public BlockOwner {
 public:
  static constexpr uint32_t kPageBytes = 4096;
  static constexpr uint32_t kSlotBytesMin = 64;

  SlabSpace(SlabPool& pool, std::shared_ptr<Slab> slab);

  // Null: no room. Under the pool's lock.
  std::byte* Allocate(size_t bytes);
  // Under the pool's lock.
  void Give(std::byte* data, size_t bytes);
  // What an allocation of `bytes` takes here.
  static uint64_t Rounded(size_t bytes);

  // BlockOwner; takes the pool's lock.
  void Free(std::byte* data, size_t bytes) noexcept override;

  const std::shared_ptr<Slab>& slab() const { return slab_; }
  uint64_t free_page_bytes() const { return uint64_t{pages_.free_units()} * kPageBytes; }

 private:
  // 64, 128, ... 2048 bytes.
  static constexpr size_t kClasses = 6;
  struct SmallPage {
    uint64_t free_slots = 0;
    uint32_t previous = Buddy::kNone;
    uint32_t next = Buddy::kNone;
  };
  static size_t ClassOf(size_t bytes);
  static uint64_t AllSlots(size_t size_class);
  void Link(size_t size_class, uint32_t page);
  void Unlink(size_t size_class, uint32_t page);

  SlabPool& pool_;
  const std::shared_ptr<Slab> slab_;
  Buddy pages_;
  std::vector<SmallPage> small_;                // by page
  std::array<uint32_t, kClasses> partly_free_;  // first page of each class with a free slot
};

}  // namespace verbena::memory
