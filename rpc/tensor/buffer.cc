#include "verbena/buffer.h"

#include "absl/strings/str_cat.h"
#include "rpc/memory/device_pool.h"
#include "rpc/memory/device_regions.h"
#include "rpc/memory/helpers.h"
#include "rpc/memory/known_regions.h"
#include "rpc/tensor/buffer_memory.h"

namespace verbena {
namespace internal {

BufferMemory::BufferMemory(memory::Block block, Device device)
    : data_(block.data()),
      bytes_(block.bytes()),
      device_(device),
      read_only_(false),
      block_(std::move(block)) {}

BufferMemory::BufferMemory(std::byte* data, size_t bytes, Device device, bool read_only,
                           Buffer::Release release)
    : data_(data),
      bytes_(bytes),
      device_(device),
      read_only_(read_only),
      release_(std::move(release)) {}

BufferMemory::~BufferMemory() {
  if (release_) memory::Dispose(std::move(release_));
}

absl::StatusOr<memory::RegionRef> BufferMemory::region() {
  if (block_) return block_.region();
  const std::lock_guard lock(mutex_);
  // Its user may have freed it, and got it again, since it was sent last.
  if (region_ == nullptr || !memory::StillThere(*region_)) {
    absl::StatusOr<memory::RegionRef> found = memory::RegionFor(data_, bytes_, device_);
    if (!found.ok()) return found.status();
    region_ = *std::move(found);
  }
  return region_;
}

absl::StatusOr<memory::RegionRef> BufferAccess::region(const Buffer& buffer) {
  if (buffer.memory_ == nullptr) return absl::FailedPreconditionError("the buffer has no memory");
  return buffer.memory_->region();
}

Buffer BufferAccess::FromBlock(memory::Block block) {
  return Make(std::make_shared<BufferMemory>(std::move(block), Device::Host()));
}

Buffer BufferAccess::Make(std::shared_ptr<BufferMemory> memory) {
  Buffer buffer;
  buffer.data_ = memory->data();
  buffer.bytes_ = memory->bytes();
  buffer.memory_ = std::move(memory);
  return buffer;
}

}  // namespace internal

using internal::BufferAccess;
using internal::BufferMemory;

absl::StatusOr<Buffer> Buffer::Allocate(size_t bytes, Device device) {
  if (device == Device::Host()) {
    absl::StatusOr<memory::Block> block = memory::AllocateBlock(bytes);
    if (!block.ok()) return block.status();
    return BufferAccess::FromBlock(*std::move(block));
  }
  absl::StatusOr<memory::Block> block = memory::AllocateDeviceBlock(device, bytes);
  if (!block.ok()) return block.status();
  return BufferAccess::Make(std::make_shared<BufferMemory>(*std::move(block), device));
}

Buffer Buffer::Wrap(void* data, size_t bytes, Release release, Device device) {
  return BufferAccess::Make(std::make_shared<BufferMemory>(static_cast<std::byte*>(data), bytes,
                                                           device, false, std::move(release)));
}

Buffer Buffer::WrapReadOnly(const void* data, size_t bytes, Release release, Device device) {
  auto* bytes_at = static_cast<std::byte*>(const_cast<void*>(data));
  return BufferAccess::Make(
      std::make_shared<BufferMemory>(bytes_at, bytes, device, true, std::move(release)));
}

absl::StatusOr<Buffer> Buffer::After(DeviceStream stream) const {
  if (memory_ == nullptr) return absl::InvalidArgumentError("no memory to be written by a stream");
  const absl::StatusOr<memory::Device*> on = memory::FindDevice(device());
  if (!on.ok()) return on.status();
  absl::StatusOr<memory::ReadinessRef> after = (*on)->Record({stream.handle()});
  if (!after.ok()) return after.status();
  Buffer buffer = *this;
  buffer.after_ = *std::move(after);
  return buffer;
}

Device Buffer::device() const { return memory_ == nullptr ? Device::Host() : memory_->device(); }
bool Buffer::read_only() const { return memory_ != nullptr && memory_->read_only(); }

absl::StatusOr<Buffer> Buffer::Slice(size_t offset, size_t bytes) const {
  if (offset > bytes_ || bytes > bytes_ - offset) {
    return absl::OutOfRangeError(
        absl::StrCat(bytes, " bytes from byte ", offset, " of a buffer of ", bytes_));
  }
  Buffer part = *this;
  if (part.data_ != nullptr) part.data_ += offset;
  part.bytes_ = bytes;
  return part;
}

}  // namespace verbena
