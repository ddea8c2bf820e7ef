#pragma once
// The leases of one end of a link, as words in its own segment. A READ takes no hold: the reader
// checks the word, copies, checks again; so a revocation is complete with one store of the owner,
// and a stopped reader harms nobody. Only a copy that stands in a stream of the reader's has one,
// in the reader's segment (segment.h, Hold), and a revocation waits for it, but not for long. Whole
// slabs are mapped by the peer: the bounds here bind an honest reader only
// (traits().bounds_enforced is false).
#include <cstdint>
#include <vector>

#include "rpc/base/ids.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/segment.h"

namespace verbena::fabric::shm {

inline constexpr uint32_t kNoEntry = ~0u;
// The buffer of a lease that nobody can map: its owner copies what is READ of it to stages.
inline constexpr uint64_t kStagedBuffer = ~uint64_t{0};

// RemoteKey::words: the lease's word; its index in the table; its buffer; its start.
class LeaseOwner {
 public:
  void Attach(LeaseEntry* entries) { entries_ = entries; }
  // kNoEntry when kLeasesMax are live. `buffer` 0: `start` is an address in this process.
  uint32_t Add(uint64_t buffer, uint64_t start, uint64_t bytes, RemoteKey& key);
  // No byte of it is deliverable when this returns.
  void Revoke(uint32_t entry);

 private:
  LeaseEntry* entries_ = nullptr;
  std::vector<uint32_t> free_;
  uint32_t used_ = 0;  // entries below were live once; keeps to the first pages
};

// What a reader took from the owner's table, each field once.
struct LeaseView {
  Error error = Error::kOk;
  uint64_t buffer = 0;
  uint64_t start = 0;
};

// Checks the key and the range against the peer's table. Values are the peer's: the caller still
// checks them against what it mapped.
LeaseView CheckLease(const LeaseEntry* entries, const RemoteKey& key, uint64_t offset,
                     uint64_t bytes);
// After the copy: whether the lease was live all the time.
bool LeaseStillLive(const LeaseEntry* entries, const RemoteKey& key);
// The owner's, after Revoke: whether its peer's desk holds the lease.
bool IsHeld(const Hold* holds, uint32_t entry, uint64_t word);
bool AnyHeld(const Hold* holds);

}  // namespace verbena::fabric::shm
