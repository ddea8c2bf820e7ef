#include "rpc/memory/region.h"

#include <utility>

#include "rpc/memory/block_owner.h"

namespace verbena::memory {

Block& Block::operator=(Block&& other) noexcept {
  if (this == &other) return *this;
  Reset();
  region_ = std::move(other.region_);
  data_ = std::exchange(other.data_, nullptr);
  bytes_ = std::exchange(other.bytes_, 0);
  owner_ = std::exchange(other.owner_, nullptr);
  return *this;
}

void Block::Reset() noexcept {
  if (data_ == nullptr) return;
  // The owner holds the region too: this reference is never the last, so nothing is unmapped here.
  region_.reset();
  static_cast<BlockOwner*>(std::exchange(owner_, nullptr))
      ->Free(std::exchange(data_, nullptr), std::exchange(bytes_, 0));
}

}  // namespace verbena::memory
