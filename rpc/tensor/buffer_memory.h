#pragma once
// What Buffers share, and the way in for the rooms that lease and fetch. Users see none of it.
#include <cstddef>
#include <memory>
#include <mutex>
#include <utility>

#include "rpc/memory/region.h"
#include "verbena/buffer.h"

namespace verbena::internal {

// Owner of one range: a block of the pools of the host or a device, or a user's memory with its
// release callback.
class BufferMemory {
 public:
  BufferMemory(memory::Block block, Device device);
  BufferMemory(std::byte* data, size_t bytes, Device device, bool read_only,
               Buffer::Release release);
  // The release callback runs here, or on the disposal thread when a reactor drops the last
  // reference.
  ~BufferMemory();
  BufferMemory(const BufferMemory&) = delete;
  BufferMemory& operator=(const BufferMemory&) = delete;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  Device device() const { return device_; }
  bool read_only() const { return read_only_; }
  // The region that the memory lies in: of the pools, a user's registration, or made here when
  // nobody knows the memory. NOT_FOUND: no such device in this process, or none of its memory (any
  // more). Any thread; locks.
  absl::StatusOr<memory::RegionRef> region();

 private:
  std::byte* const data_;
  const size_t bytes_;
  const Device device_;
  const bool read_only_;
  memory::Block block_;
  Buffer::Release release_;
  std::mutex mutex_;
  memory::RegionRef region_;  // under mutex_
};

// What leasing and fetching need to know of a Buffer.
class BufferAccess {
 public:
  // Null for a Buffer without memory. Holding it keeps the memory.
  static const std::shared_ptr<BufferMemory>& memory(const Buffer& buffer) {
    return buffer.memory_;
  }
  // For the room that is about to lease the memory out, or READ into it. FAILED_PRECONDITION: no
  // memory.
  static absl::StatusOr<memory::RegionRef> region(const Buffer& buffer);
  // Also of read-only memory, which a lease only reads.
  static std::byte* data(const Buffer& buffer) { return buffer.data_; }
  // What must end before the memory may be read; null: nothing.
  static const memory::ReadinessRef& after(const Buffer& buffer) { return buffer.after_; }
  // Takes a block that was filled by READs.
  static Buffer FromBlock(memory::Block block);
  static MemoryRegistration Registration(memory::RegionRef region);

 private:
  friend class ::verbena::Buffer;
  static Buffer Make(std::shared_ptr<BufferMemory> memory);
};

}  // namespace verbena::internal
