#include "rpc/tensor/parcel_table.h"

#include <random>
#include <utility>

namespace verbena::internal {

uint64_t NewStamp() {
  static std::atomic<uint64_t>* const next = [] {
    std::random_device random;
    const uint64_t seed = uint64_t{random()} << 32 | random();
    return new std::atomic<uint64_t>(seed);
  }();
  for (;;) {
    const uint64_t stamp = next->fetch_add(1, std::memory_order_relaxed) << kSlotBits;
    if (stamp != 0) return stamp;
  }
}

ParcelSlot ParcelTable::Get(uint64_t slot) const {
  const std::lock_guard lock(mutex_);
  return slots_[slot - 1];
}

void ParcelTable::Set(uint64_t slot, Buffer local) {
  const std::lock_guard lock(mutex_);
  std::swap(slots_[slot - 1].local, local);
  slots_[slot - 1].here = true;
}

uint64_t ParcelTable::Add(ParcelSlot slot) {
  const std::lock_guard lock(mutex_);
  slots_.push_back(std::move(slot));
  return slots_.size();
}

uint64_t ParcelTable::count() const {
  const std::lock_guard lock(mutex_);
  return slots_.size();
}

}  // namespace verbena::internal
