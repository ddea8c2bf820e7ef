#pragma once
// memory::Region: one allocation that the library knows, shared by the buffers that lie in it and
// by whoever leases it out. A slab of the pools (registered, exportable), memory that a user
// registered, or foreign memory described when it is first attached.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "rpc/memory/device.h"

namespace verbena::memory {

enum class RegionKind : uint8_t {
  kSlab,  // of the library's pools: faulted in, exportable by memfd, registered with each domain
  kRegistered,  // a user's, registered explicitly; the owner keeps it mapped until it unregisters
  kForeign,  // a user's, unknown before; reachable for a process of the same user only (kProcess),
             // or by tcp
};

class Region {
 public:
  Region(Device& device, Extent extent, RegionKind kind, int fd, uint64_t fd_offset)
      : device_(&device), extent_(extent), kind_(kind), fd_(fd), fd_offset_(fd_offset) {}
  virtual ~Region() = default;
  Region(const Region&) = delete;
  Region& operator=(const Region&) = delete;

  Device& device() const { return *device_; }
  const Extent& extent() const { return extent_; }
  std::byte* base() const { return extent_.base; }
  size_t bytes() const { return extent_.bytes; }
  RegionKind kind() const { return kind_; }
  // The memfd that backs a slab, owned by the slab; -1 otherwise.
  int fd() const { return fd_; }
  uint64_t fd_offset() const { return fd_offset_; }
  // Unique in this process for ever: what a fabric keys its exports and registrations by.
  uint64_t buffer_id() const { return extent_.buffer_id; }

 private:
  Device* device_;
  Extent extent_;
  RegionKind kind_;
  int fd_;
  uint64_t fd_offset_;
};
using RegionRef = std::shared_ptr<const Region>;

// A piece of the pools. Move-only; gives the memory back when it dies, on any thread, without
// blocking.
class Block {
 public:
  Block() = default;
  Block(RegionRef region, std::byte* data, size_t bytes, void* owner) noexcept
      : region_(std::move(region)), data_(data), bytes_(bytes), owner_(owner) {}
  Block(Block&& other) noexcept { *this = std::move(other); }
  Block& operator=(Block&& other) noexcept;
  ~Block() { Reset(); }
  void Reset() noexcept;

  std::byte* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  const RegionRef& region() const { return region_; }
  explicit operator bool() const { return data_ != nullptr; }

 private:
  RegionRef region_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  void* owner_ = nullptr;
};

// Host memory from the slab pool of this thread's NUMA node: faulted in, huge pages where possible,
// 64-byte aligned (4 KiB from 4 KiB up). Any thread; takes a lock, never a system call while the
// pool has room; growing it blocks. RESOURCE_EXHAUSTED names the pool's limit and what is in use.
absl::StatusOr<Block> AllocateBlock(size_t bytes);

}  // namespace verbena::memory
