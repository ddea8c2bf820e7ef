// Domain: memory of devices. What leases make of it is theirs alone; what READs write into is
// registered once for its allocation and kept, since that takes milliseconds.
#include <algorithm>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/device_memory.h"
#include "rpc/fabric/verbs/domain.h"
#include "rpc/memory/device_regions.h"

namespace verbena::fabric::verbs {
namespace {

// Allocations of a device that are registered as destinations. More, and the one that was used
// longest ago is registered again when it is used again, for milliseconds.
constexpr size_t kDestinationsMax = 1024;
// Allocations that are known not to be registrable. Beyond, all are tried once more.
constexpr size_t kRefusedMax = 1024;

bool Within(const std::byte* address, const memory::Extent& extent) {
  return address >= extent.base && address < extent.base + extent.bytes;
}

}  // namespace

bool Domain::MayReach(memory::Device& device, bool write) const {
  const memory::NicAccess* const nic = memory::NicAccessOf(device);
  if (nic == nullptr || (write && !nic->nic_facts().writable)) return false;
  absl::MutexLock lock(&mutex_);
  const auto it = refusals_.find(&device);
  return it == refusals_.end() || !it->second.final;
}

// Said once for each kind of answer; one that is about the NIC and the device stays.
void Domain::NoteRefusal(memory::Device& device, const absl::Status& why) {
  {
    absl::MutexLock lock(&mutex_);
    Refusal& refusal = refusals_[&device];
    refusal.final |= absl::IsUnimplemented(why);
    const uint32_t bit = 1u << static_cast<int>(why.code());
    if ((std::exchange(refusal.said, refusal.said | bit) & bit) != 0) return;
  }
  VERBENA_LOG(kWarning, "verbs: ", device_.name(), " does not reach memory of ",
              memory::NameOf(device.where()), ", which goes by way of the host's: ", why.message());
}

absl::StatusOr<ibv_mr*> Domain::WithRoom(memory::Device& device,
                                         absl::FunctionRef<absl::StatusOr<ibv_mr*>()> make) {
  absl::StatusOr<ibv_mr*> made = make();
  while (absl::IsResourceExhausted(made.status()) && DropUnused(device, nullptr)) made = make();
  if (!made.ok()) NoteRefusal(device, made.status());
  return made;
}

absl::StatusOr<ibv_mr*> Domain::LeaseDevice(const memory::Region& region, const std::byte* data,
                                            size_t bytes) {
  memory::Device& device = region.device();
  if (!memory::StillThere(region)) return absl::NotFoundError("memory that was freed");
  const absl::StatusOr<std::vector<memory::Extent>> extents = device.Describe(data, bytes);
  if (!extents.ok()) return extents.status();
  if (extents->size() != 1) {
    return absl::FailedPreconditionError("a lease has one key, and this lies in several mappings");
  }
  return WithRoom(device, [&] {
    return RegisterDevice(pd_, device, extents->front(), data, bytes, IBV_ACCESS_REMOTE_READ);
  });
}

bool Domain::IsRefused(const memory::Extent& extent) const {
  absl::MutexLock lock(&mutex_);
  return refused_.contains(extent.buffer_id);
}

Domain::Pin Domain::FindDevice(memory::Device& device, const memory::Extent& extent) const {
  absl::MutexLock lock(&mutex_);
  const auto it = by_device_.find({&device, extent.base});
  if (it == by_device_.end() || it->second->buffer_id_ != extent.buffer_id) return Pin();
  Memory& memory = *it->second;
  memory.used_ = ++uses_;
  memory.pins_.fetch_add(1, std::memory_order_relaxed);
  return Pin(&memory);
}

absl::StatusOr<Domain::Pin> Domain::RegisterDestination(memory::Device& device,
                                                        const memory::Extent& extent) {
  if (Pin pin = FindDevice(device, extent)) return pin;
  DropStale(device, extent);
  DropGone(device);
  while (KnownOf(device) >= kDestinationsMax && DropUnused(device, nullptr)) {
  }
  const absl::StatusOr<ibv_mr*> made = WithRoom(device, [&] {
    return RegisterDevice(pd_, device, extent, extent.base, extent.bytes, IBV_ACCESS_LOCAL_WRITE);
  });
  if (!made.ok()) {
    if (!absl::IsResourceExhausted(made.status())) {
      absl::MutexLock lock(&mutex_);
      if (refused_.size() >= kRefusedMax) refused_.clear();
      refused_.insert(extent.buffer_id);
    }
    return made.status();
  }
  auto memory = std::make_unique<Memory>(*made, extent);
  bool taken = false;
  {
    absl::MutexLock lock(&mutex_);
    taken = !by_device_.try_emplace({&device, extent.base}, std::move(memory)).second;
  }
  if (taken) {
    DeregisterDevice(*made);
    return absl::UnavailableError("what was there before is still being read into");
  }
  return FindDevice(device, extent);
}

// What was freed, and allocated again as `extent`.
void Domain::DropStale(memory::Device& device, const memory::Extent& extent) {
  std::unique_ptr<Memory> stale;
  {
    absl::MutexLock lock(&mutex_);
    const auto it = by_device_.find({&device, extent.base});
    if (it == by_device_.end() || it->second->pins_.load(std::memory_order_acquire) > 0) return;
    stale = std::move(it->second);
    by_device_.erase(it);
  }
  DeregisterDevice(stale->mr());  // milliseconds, for which no reactor waits
}

// What was freed, and would not be free while a NIC has it.
void Domain::DropGone(memory::Device& device) {
  std::vector<memory::Extent> known;
  {
    absl::MutexLock lock(&mutex_);
    for (const auto& [key, memory] : by_device_) {
      if (key.first == &device) known.push_back({key.second, 1, memory->buffer_id_});
    }
  }
  for (const memory::Extent& extent : known) {
    if (!device.IsThere(extent)) DropStale(device, extent);
  }
}

size_t Domain::KnownOf(const memory::Device& device) const {
  absl::MutexLock lock(&mutex_);
  return static_cast<size_t>(
      std::count_if(by_device_.begin(), by_device_.end(),
                    [&device](const auto& entry) { return entry.first.first == &device; }));
}

// The one that was used longest ago, or one within `ended`. False: none that nobody uses.
bool Domain::DropUnused(memory::Device& device, const memory::Extent* ended) {
  std::unique_ptr<Memory> dropped;
  {
    absl::MutexLock lock(&mutex_);
    auto drop = by_device_.end();
    for (auto it = by_device_.begin(); it != by_device_.end(); ++it) {
      const Memory& memory = *it->second;
      if (it->first.first != &device || memory.pins_.load(std::memory_order_acquire) > 0) continue;
      if (ended != nullptr && !Within(memory.base_, *ended)) continue;
      if (drop == by_device_.end() || memory.used_ < drop->second->used_) drop = it;
    }
    if (drop == by_device_.end()) return false;
    dropped = std::move(drop->second);
    by_device_.erase(drop);
  }
  DeregisterDevice(dropped->mr());
  return true;
}

// By its addresses: a device may number what it describes otherwise than what it allocates.
absl::Status Domain::EndDevice(const Memory& memory) {
  const memory::Extent ended{memory.base_, memory.bytes_, 0};
  while (DropUnused(*memory.device_, &ended)) {
  }
  // What a user has freed may be somebody's again by now, who reads into it.
  if (!memory.allocated_ || !InUse(*memory.device_, ended)) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("READs of ", device_.name(), " write into it"));
}

bool Domain::InUse(memory::Device& device, const memory::Extent& extent) const {
  absl::MutexLock lock(&mutex_);
  return std::any_of(by_device_.begin(), by_device_.end(), [&](const auto& entry) {
    return entry.first.first == &device && Within(entry.second->base_, extent) &&
           entry.second->pins_.load(std::memory_order_acquire) > 0;
  });
}

}  // namespace verbena::fabric::verbs
