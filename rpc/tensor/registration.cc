// MemoryRegistration and RegisterMemory: the public face of memory/user_memory.h.
#include "rpc/base/log.h"
#include "rpc/memory/user_memory.h"
#include "rpc/tensor/buffer_memory.h"
#include "verbena/buffer.h"

namespace verbena {
namespace internal {

MemoryRegistration BufferAccess::Registration(memory::RegionRef region) {
  MemoryRegistration registration;
  registration.region_ = std::move(region);
  return registration;
}

}  // namespace internal
namespace {

absl::StatusOr<MemoryRegistration> Register(void* data, size_t bytes, Device device,
                                            bool read_only) {
  absl::StatusOr<memory::RegionRef> region =
      memory::RegisterUserMemory(static_cast<std::byte*>(data), bytes, device, read_only);
  if (!region.ok()) return region.status();
  return internal::BufferAccess::Registration(*std::move(region));
}

}  // namespace

absl::StatusOr<MemoryRegistration> RegisterMemory(void* data, size_t bytes, Device device) {
  return Register(data, bytes, device, false);
}

absl::StatusOr<MemoryRegistration> RegisterMemoryReadOnly(const void* data, size_t bytes,
                                                          Device device) {
  return Register(const_cast<void*>(data), bytes, device, true);
}

MemoryRegistration& MemoryRegistration::operator=(MemoryRegistration&& other) noexcept {
  if (this != &other) {
    MemoryRegistration old = std::move(*this);
    region_ = std::move(other.region_);
  }
  return *this;
}

MemoryRegistration::~MemoryRegistration() {
  const absl::Status status = Unregister();
  if (status.ok()) return;
  VERBENA_LOG(kWarning, "memory stays registered: ", status.message());
  memory::KeepRegistered(std::move(region_));
}

absl::Status MemoryRegistration::Unregister() {
  if (region_ == nullptr) return absl::OkStatus();
  return memory::UnregisterUserMemory(region_);
}

}  // namespace verbena
