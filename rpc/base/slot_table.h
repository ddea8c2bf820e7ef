#pragma once
// SlotTable<T, Tag>: objects named by index and generation, in chunks that never move. A name of
// something that was freed finds nothing, even after the slot was used again: late completions are
// detected, not dereferenced.
//
//   SlotTable<Lease, LeaseTag> table(limits::kLeasesMax);
//   LeaseSlot slot = table.Add();                    // index ~0 when full
//   Lease* lease = table.Find(slot);                 // null when it is no longer that one
//   table.Remove(slot);
//
// One thread at a time. Allocates a chunk when all slots are taken, never gives one back; freed
// slots are used again last in, first out, so the working set stays small.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/base/ids.h"

namespace verbena {

template <class T, class Tag, uint32_t kChunkSlots = 64>
class SlotTable {
  static_assert((kChunkSlots & (kChunkSlots - 1)) == 0, "a power of two: Find divides by it");

 public:
  using Id = SlotId<Tag>;

  explicit SlotTable(uint32_t slots_max) : slots_max_(slots_max) {}
  ~SlotTable() { Clear(); }
  SlotTable(const SlotTable&) = delete;
  SlotTable& operator=(const SlotTable&) = delete;

  // Constructs a T in a free slot. `index` ~0: all slots_max are taken.
  template <class... Args>
  Id Add(Args&&... args) {
    uint32_t index = free_;
    if (index != kNone) {
      free_ = At(index).next_free;
    } else if (used_ < slots_max_) {
      if (used_ == chunks_.size() * kChunkSlots) {
        chunks_.push_back(std::make_unique<Slot[]>(kChunkSlots));
      }
      index = used_++;
    } else {
      return Id{};
    }
    Slot& slot = At(index);
    VERBENA_DCHECK((slot.generation & 1) == 0, "slot ", index, " is taken already");
    ::new (static_cast<void*>(slot.storage)) T(std::forward<Args>(args)...);
    ++slot.generation;  // odd = live
    ++size_;
    return Id{index, slot.generation};
  }

  T* Find(Id id) {
    if (id.index >= used_) return nullptr;
    Slot& slot = At(id.index);
    return slot.generation == id.generation && (id.generation & 1) != 0 ? slot.object() : nullptr;
  }

  // False: it is not there any more.
  bool Remove(Id id) {
    T* const object = Find(id);
    if (object == nullptr) return false;
    object->~T();
    Slot& slot = At(id.index);
    ++slot.generation;
    slot.next_free = free_;
    free_ = id.index;
    --size_;
    return true;
  }

  // f(Id, T&) for each live one. `f` may remove the one it was given.
  template <class F>
  void ForEach(F&& f) {
    for (uint32_t i = 0; i < used_; ++i) {
      Slot& slot = At(i);
      if ((slot.generation & 1) != 0) f(Id{i, slot.generation}, *slot.object());
    }
  }

  void Clear() {
    for (uint32_t i = 0; i < used_; ++i) {
      if ((At(i).generation & 1) != 0) Remove(Id{i, At(i).generation});
    }
  }

  uint32_t size() const { return size_; }
  uint32_t slots_max() const { return slots_max_; }

 private:
  static constexpr uint32_t kNone = ~0u;
  struct Slot {
    alignas(T) std::byte storage[sizeof(T)];
    uint32_t generation = 0;  // odd = live; wraps after 2^31 uses of one slot
    uint32_t next_free = kNone;
    T* object() { return std::launder(reinterpret_cast<T*>(storage)); }
  };
  Slot& At(uint32_t index) { return chunks_[index / kChunkSlots][index % kChunkSlots]; }
  const Slot& At(uint32_t index) const { return chunks_[index / kChunkSlots][index % kChunkSlots]; }

  const uint32_t slots_max_;
  uint32_t used_ = 0;
  uint32_t size_ = 0;
  uint32_t free_ = kNone;
  std::vector<std::unique_ptr<Slot[]>> chunks_;
};

}  // namespace verbena
