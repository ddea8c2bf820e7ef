#pragma once
// verbs::Domain: what this process has registered with one device for bulk lanes. Their queue pairs
// live in its protection domain; so do the pools' slabs and users' registered memory, once per
// device however many reactors use it. Nothing of it is exposed by being registered: with windows
// or a registration per lease, a slab's own key allows no remote access (with the lane as the
// lease's end, it does).
//
// A domain is made at its first use and stays until the process ends.
#include <infiniband/verbs.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_set.h"
#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/memory/registrar.h"

namespace verbena::fabric::verbs {

class Domain final : public memory::Registrar {
 public:
  // A region that is registered here. Shared by whoever pins it.
  class Memory final : public memory::Registration {
   public:
    Memory(ibv_mr* mr, const memory::Extent& extent)
        : mr_(mr), base_(extent.base), bytes_(extent.bytes), buffer_id_(extent.buffer_id) {}
    // Of a device's memory, of which the domain is to hear when it ends.
    explicit Memory(const memory::Region& region) : Memory(nullptr, region.extent()) {
      device_ = &region.device();
      allocated_ = region.kind() != memory::RegionKind::kForeign;
    }
    ibv_mr* mr() const { return mr_; }

   private:
    friend class Domain;
    friend class Pin;
    ibv_mr* const mr_;
    std::byte* const base_;
    const size_t bytes_;
    const uint64_t buffer_id_;
    memory::Device* device_ = nullptr;
    bool allocated_ = false;  // by the library, which frees it when it has ended here
    uint64_t used_ = 0;       // device memory: when it was used last
    std::atomic<uint32_t> pins_{0};
  };
  // Keeps a registration while a lease or a READ needs it. Move-only; any thread.
  class Pin {
   public:
    Pin() = default;
    Pin(Pin&& other) noexcept : memory_(std::exchange(other.memory_, nullptr)) {}
    Pin& operator=(Pin&& other) noexcept {
      Reset();
      memory_ = std::exchange(other.memory_, nullptr);
      return *this;
    }
    ~Pin() { Reset(); }
    void Reset() {
      if (memory_ != nullptr) memory_->pins_.fetch_sub(1, std::memory_order_release);
      memory_ = nullptr;
    }
    explicit operator bool() const { return memory_ != nullptr; }
    ibv_mr* mr() const { return memory_->mr(); }

   private:
    friend class Domain;
    explicit Pin(Memory* memory) : memory_(memory) {}
    Memory* memory_ = nullptr;
  };

  // The domain of a device for leases of that kind. May block. Errors: calls.h.
  static absl::StatusOr<Domain*> Of(Device& device, Revocation revocation);

  // From now on regions are registered here. Setup thread only; again is harmless.
  void Join();

  Device& device() const { return device_; }
  ibv_pd* pd() const { return pd_; }

  // The registration that covers all of [data, data + bytes), or none. Any thread; a lock.
  Pin Find(const std::byte* data, size_t bytes) const ABSL_LOCKS_EXCLUDED(mutex_);
  // A registration of exactly that range: for one lease (remote_read) or one READ's destination.
  // A lease of what the device cannot pin gets a copy's (copies.h), whose address it has. Whoever
  // gets it deregisters it. Setup thread only.
  absl::StatusOr<ibv_mr*> RegisterRange(const std::byte* data, size_t bytes, bool remote_read);
  static void Deregister(ibv_mr* mr);

  // Memory of a device, which the NIC reaches by itself where both can (device_memory.h). The first
  // refusal of each kind is said in the log; the caller has the memory go by way of the host's.
  //
  // False: never, as is known by now. Any thread; a lock.
  bool MayReach(memory::Device& device, bool write) const ABSL_LOCKS_EXCLUDED(mutex_);
  // For one lease; as RegisterRange. FAILED_PRECONDITION: it lies in several mappings. Setup thread
  // only.
  absl::StatusOr<ibv_mr*> LeaseDevice(const memory::Region& region, const std::byte* data,
                                      size_t bytes) ABSL_LOCKS_EXCLUDED(mutex_);
  // For READs into an allocation, or a mapping, as it is described now: what is kept for it. None:
  // have it registered. Any thread; a lock.
  Pin FindDevice(memory::Device& device, const memory::Extent& extent) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether that was tried, and this memory is of a kind that no NIC takes. Any thread; a lock.
  bool IsRefused(const memory::Extent& extent) const ABSL_LOCKS_EXCLUDED(mutex_);
  // Kept until the allocation ends, as far as is heard, or another needs its room. Setup thread
  // only.
  absl::StatusOr<Pin> RegisterDestination(memory::Device& device, const memory::Extent& extent)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::StatusOr<std::unique_ptr<memory::Registration>> Register(const memory::Region& region,
                                                                 uint8_t uses) override;
  absl::Status Unregister(std::unique_ptr<memory::Registration>& registration) override;

 private:
  Domain(Device& device, Revocation revocation, ibv_pd* pd)
      : device_(device), revocation_(revocation), pd_(pd) {}

  struct Refusal {
    bool final = false;
    uint32_t said = 0;  // a bit for each code
  };

  void NoteRefusal(memory::Device& device, const absl::Status& why) ABSL_LOCKS_EXCLUDED(mutex_);
  // Makes room while there is some to be made.
  absl::StatusOr<ibv_mr*> WithRoom(memory::Device& device,
                                   absl::FunctionRef<absl::StatusOr<ibv_mr*>()> make)
      ABSL_LOCKS_EXCLUDED(mutex_);
  void DropStale(memory::Device& device, const memory::Extent& extent) ABSL_LOCKS_EXCLUDED(mutex_);
  void DropGone(memory::Device& device) ABSL_LOCKS_EXCLUDED(mutex_);
  size_t KnownOf(const memory::Device& device) const ABSL_LOCKS_EXCLUDED(mutex_);
  bool DropUnused(memory::Device& device, const memory::Extent* ended) ABSL_LOCKS_EXCLUDED(mutex_);
  bool InUse(memory::Device& device, const memory::Extent& extent) const
      ABSL_LOCKS_EXCLUDED(mutex_);
  // FAILED_PRECONDITION: it is being read into.
  absl::Status EndDevice(const Memory& memory) ABSL_LOCKS_EXCLUDED(mutex_);

  Device& device_;
  const Revocation revocation_;
  ibv_pd* const pd_;
  mutable absl::Mutex mutex_;
  mutable uint64_t uses_ ABSL_GUARDED_BY(mutex_) = 0;
  std::map<std::pair<memory::Device*, std::byte*>, std::unique_ptr<Memory>> by_device_
      ABSL_GUARDED_BY(mutex_);
  std::map<memory::Device*, Refusal> refusals_ ABSL_GUARDED_BY(mutex_);
  absl::flat_hash_set<uint64_t> refused_ ABSL_GUARDED_BY(mutex_);  // by buffer id
  std::map<const std::byte*, Memory*> by_base_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace verbena::fabric::verbs
