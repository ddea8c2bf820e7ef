#pragma once
// Buffer: a range of memory with shared ownership, on the host or on another device. Copying
// shares; when the last copy and every lease of it to a peer are gone, the memory is released.
//
//   auto buffer = verbena::Buffer::Allocate(1 << 20);  // from the pools: the fastest to send
//   auto mine = verbena::Buffer::Wrap(p, n, [owner] { owner->Done(); });  // until that has run
//
// Memory that you wrap goes fastest when it is registered (RegisterMemory) for as long as it is
// used.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "verbena/device.h"

namespace verbena {

namespace memory {
class Readiness;
class Region;
}  // namespace memory
namespace internal {
class BufferMemory;
class BufferAccess;
}  // namespace internal

class Buffer {
 public:
  // Runs once, when nothing uses the memory any more: on the thread that drops the last reference,
  // or on the disposal thread when that is a reactor's. Must not throw. May be empty.
  using Release = absl::AnyInvocable<void() &&>;

  // No memory: data() is null, bytes() 0.
  Buffer() = default;

  // Memory of the library's pools, on the host or on the device; contents undefined. 64-byte
  // aligned, 4 KiB from 4 KiB up. A device's may be given to somebody else as soon as it is
  // released: work that is queued on a stream must not use it then. Any thread; may block when a
  // pool grows. RESOURCE_EXHAUSTED names the pool's limit and what is in use, or the device that is
  // full; NOT_FOUND: no such device here (UseGpus).
  static absl::StatusOr<Buffer> Allocate(size_t bytes, Device device = Device::Host());
  // [data, data + bytes) stays yours, valid and unmodified wherever it is sent, until `release`
  // runs. Any thread; allocates; never looks at the memory, nor whether the device is known.
  static Buffer Wrap(void* data, size_t bytes, Release release, Device device = Device::Host());
  // The same for memory that must not be written: nothing can be fetched into it.
  static Buffer WrapReadOnly(const void* data, size_t bytes, Release release,
                             Device device = Device::Host());

  // An address on device(); only touch it when that is the host.
  const std::byte* data() const { return data_; }
  // Null when read-only.
  std::byte* mutable_data() { return read_only() ? nullptr : data_; }
  size_t bytes() const { return bytes_; }
  Device device() const;
  bool read_only() const;
  // A part that shares the memory. OUT_OF_RANGE names the range and bytes().
  absl::StatusOr<Buffer> Slice(size_t offset, size_t bytes) const;
  // The same memory of a GPU, written by work that is queued on `stream` now: peers are told of it
  // when that has ended, and nobody waits for it before. Replaces what was said before. A stream of
  // another GPU will do. Null is the legacy default stream of this memory's GPU, in programs built
  // with --default-stream per-thread too; cudaStreamPerThread is the calling thread's. Any thread;
  // microseconds. FAILED_PRECONDITION: the stream is being captured into a graph; INVALID_ARGUMENT:
  // no memory; UNIMPLEMENTED: host memory; NOT_FOUND: no such GPU; ABORTED, DATA_LOSS: failed.
  absl::StatusOr<Buffer> After(DeviceStream stream) const;
  // How many Buffers and Tensors share the memory, leases counted; 0 without memory. A hint while
  // others copy.
  long use_count() const { return memory_.use_count(); }

 private:
  friend class internal::BufferAccess;
  std::shared_ptr<internal::BufferMemory> memory_;
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
  std::shared_ptr<const memory::Readiness> after_;  // null: it is written
};

// Memory of yours that the library may keep registered with NICs and other domains. Move-only;
// unregisters when it dies.
class MemoryRegistration {
 public:
  MemoryRegistration() = default;
  MemoryRegistration(MemoryRegistration&&) noexcept = default;
  MemoryRegistration& operator=(MemoryRegistration&& other) noexcept;
  // As Unregister; a refusal is logged and the memory stays registered.
  ~MemoryRegistration();

  // FAILED_PRECONDITION names what still uses the memory: a Buffer that was sent from it, a lease,
  // a READ into it; drop them and try again. OK when there is nothing to do. May block. Any thread
  // but a reactor's.
  absl::Status Unregister();

 private:
  friend class internal::BufferAccess;
  std::shared_ptr<const memory::Region> region_;
};

// Registers [data, data + bytes), which must stay mapped until the result is gone. Buffers and
// Tensors wrapped around any part of it use the registration. May block for milliseconds per GiB.
// Any thread but a reactor's. INVALID_ARGUMENT: no bytes, or the range wraps around;
// ALREADY_EXISTS: it overlaps a registered range, which is named.
absl::StatusOr<MemoryRegistration> RegisterMemory(void* data, size_t bytes,
                                                  Device device = Device::Host());

// The same for memory that may only be read: it can be sent from, not fetched into.
absl::StatusOr<MemoryRegistration> RegisterMemoryReadOnly(const void* data, size_t bytes,
                                                          Device device = Device::Host());

}  // namespace verbena
