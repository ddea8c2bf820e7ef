#pragma once
// internal::ParcelTable: the tensors of one parcel. A slot holds memory that is here (attached, or
// fetched), or names a payload that was received and is still at its owner. Shared by the parcel
// and its fetches in flight.
//
// A ticket is 40 bits of the parcel's stamp (from a random base, so that parcels of different
// processes do not collide) and 24 bits of slot number, from 1.
#include <atomic>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "rpc/session/session.h"
#include "verbena/buffer.h"

namespace verbena::internal {

inline constexpr int kSlotBits = 24;
inline constexpr uint64_t kSlotMask = (uint64_t{1} << kSlotBits) - 1;

// A new parcel's stamp, its slot bits zero, never zero itself. Any thread.
uint64_t NewStamp();

struct ParcelSlot {
  Buffer local;  // when `here`
  bool here = false;
  uint32_t entry = 0;  // else the payload's number in its set
};

class ParcelTable {
 public:
  static ParcelTable* New() { return new ParcelTable; }
  void Ref() { references_.fetch_add(1, std::memory_order_relaxed); }
  void Unref() {
    if (references_.fetch_sub(1, std::memory_order_acq_rel) == 1) delete this;
  }

  // Any thread; slots are copied out, so that a FetchAll that ends meanwhile harms nobody.
  ParcelSlot Get(uint64_t slot) const;  // `slot` from 1, at most count()
  void Set(uint64_t slot, Buffer local);
  uint64_t Add(ParcelSlot slot);  // its number
  uint64_t count() const;

  // Before the table is shared.
  void set_payloads(session::PayloadSetRef payloads) { payloads_ = std::move(payloads); }
  const session::PayloadSetRef& payloads() const { return payloads_; }
  // Whether the payloads end with this reference: nobody else has the table, or fetches from it.
  bool IsLastOfPayloads() const {
    return references_.load(std::memory_order_acquire) == 1 && payloads_.use_count() == 1;
  }

 private:
  ParcelTable() = default;
  ~ParcelTable() = default;
  std::atomic<uint32_t> references_{1};
  // Not absl::Mutex: one is made with each parcel, see ServerContext.
  mutable std::mutex mutex_;
  std::vector<ParcelSlot> slots_;  // under mutex_
  session::PayloadSetRef payloads_;
};

}  // namespace verbena::internal
