#include "rpc/fabric/verbs/domain.h"

#include <iterator>

#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/copies.h"
#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/memory/registrars.h"

namespace verbena::fabric::verbs {

absl::StatusOr<Domain*> Domain::Of(Device& device, Revocation revocation) {
  static absl::Mutex* const mutex = new absl::Mutex;
  static auto* const domains = new std::map<std::pair<Device*, Revocation>, Domain*>;
  absl::MutexLock lock(mutex);
  Domain*& domain = (*domains)[{&device, revocation}];
  if (domain != nullptr) return domain;
  absl::StatusOr<ibv_pd*> pd = Made("ibv_alloc_pd", ibv_alloc_pd(device.context()));
  if (!pd.ok()) return pd.status();
  domain = new Domain(device, revocation, *pd);
  return domain;
}

void Domain::Join() {
  const absl::Status status = memory::AddRegistrar(*this, absl::StrCat("verbs ", device_.name()));
  if (!status.ok() && !absl::IsAlreadyExists(status)) {
    VERBENA_LOG(kWarning, "verbs: ", status.message());
  }
}

absl::StatusOr<std::unique_ptr<memory::Registration>> Domain::Register(const memory::Region& region,
                                                                       uint8_t uses) {
  if (!region.device().host_accessible()) return std::make_unique<Memory>(region);
  if (region.kind() == memory::RegionKind::kForeign) {
    return absl::UnimplementedError("verbs: memory that is not registered");
  }
  if (memory::Wanders(region.base())) {
    // Each lease and each READ has pages of its own.
    return absl::UnimplementedError("verbs: memory that wanders between the host and a GPU");
  }
  const bool writable = (uses & static_cast<uint8_t>(memory::Use::kReadInto)) != 0;
  if (!writable && revocation_ == Revocation::kWindow) {
    // To bind windows to it the kernel wants to be able to write; each lease gets a registration.
    return absl::UnimplementedError("verbs: memory that is only read from");
  }
  int access = 0;
  if (writable) access |= IBV_ACCESS_LOCAL_WRITE;
  if ((uses & static_cast<uint8_t>(memory::Use::kLeasable)) != 0) {
    if (revocation_ == Revocation::kWindow) access |= IBV_ACCESS_MW_BIND;
    if (revocation_ == Revocation::kLane) access |= IBV_ACCESS_REMOTE_READ;
  }
  absl::StatusOr<ibv_mr*> mr =
      Made("ibv_reg_mr", ibv_reg_mr(pd_, region.base(), region.bytes(), access));
  if (!mr.ok()) return mr.status();
  auto memory = std::make_unique<Memory>(*mr, region.extent());
  absl::MutexLock lock(&mutex_);
  by_base_[region.base()] = memory.get();
  return memory;
}

absl::Status Domain::Unregister(std::unique_ptr<memory::Registration>& registration) {
  auto* const memory = static_cast<Memory*>(registration.get());
  if (memory->device_ != nullptr) {
    if (absl::Status ended = EndDevice(*memory); !ended.ok()) return ended;
    registration.reset();
    return absl::OkStatus();
  }
  {
    absl::MutexLock lock(&mutex_);
    const uint32_t pins = memory->pins_.load(std::memory_order_acquire);
    if (pins > 0) {
      return absl::FailedPreconditionError(
          absl::StrCat(pins, " leases or READs of ", device_.name(), " use it"));
    }
    const auto it = by_base_.find(memory->base_);
    if (it != by_base_.end() && it->second == memory) by_base_.erase(it);
  }
  Deregister(memory->mr());
  registration.reset();
  return absl::OkStatus();
}

Domain::Pin Domain::Find(const std::byte* data, size_t bytes) const {
  absl::MutexLock lock(&mutex_);
  auto it = by_base_.upper_bound(data);
  if (it == by_base_.begin()) return Pin();
  Memory* const memory = std::prev(it)->second;
  const auto offset = static_cast<size_t>(data - memory->base_);
  if (offset > memory->bytes_ || bytes > memory->bytes_ - offset) return Pin();
  memory->pins_.fetch_add(1, std::memory_order_relaxed);
  return Pin(memory);
}

absl::StatusOr<ibv_mr*> Domain::RegisterRange(const std::byte* data, size_t bytes,
                                              bool remote_read) {
  // The library does not write through a lease's registration; the parameter is not const.
  auto* const start = const_cast<std::byte*>(data);
  const int access = remote_read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_LOCAL_WRITE;
  absl::StatusOr<ibv_mr*> mr = Made("ibv_reg_mr", ibv_reg_mr(pd_, start, bytes, access));
  if (mr.ok() || !remote_read || !absl::IsInvalidArgument(mr.status())) return mr;
  return RegisterCopy(pd_, data, bytes);
}

void Domain::Deregister(ibv_mr* mr) {
  if (!DeregisterDevice(mr)) DeregisterWithCopy(mr);
}

}  // namespace verbena::fabric::verbs
