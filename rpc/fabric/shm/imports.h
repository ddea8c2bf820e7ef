#pragma once
// What peers exported, mapped here. One mapping serves all links of this process through which the
// same memory is READ: links to one peer, and to peers that pass on what they got. It ends with the
// last of them.
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/memory/device.h"

namespace verbena::fabric::shm {

class Imported {
 public:
  // `whole`: no page of it has still to be made.
  Imported(const memory::Mapping& mapping, bool whole);
  // Any thread: the setup thread unmaps.
  ~Imported();
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

  const memory::Mapping& mapping() const { return mapping_; }
  // So that READs of the range do not fault page by page; nothing where it is not all mapped. Never
  // more than the blocks that hold it: where the peer's file has holes, faulting in makes memory.
  // Setup thread only.
  void Populate(uint64_t offset, uint64_t bytes);
  // Page-locks host memory, all of it, for copies to and from `device`, if every page of it is
  // there already; once. Setup thread only.
  void LockFor(memory::Device& device);
  // Whether that was tried, or is of no use. Any thread.
  bool lock_tried() const { return lock_tried_.load(std::memory_order_acquire); }
  // Whether that has been done for all of the range. Any thread.
  bool populated(uint64_t offset, uint64_t bytes) const;

 private:
  bool Holds(uint64_t offset, uint64_t bytes) const;

  const memory::Mapping mapping_;
  std::vector<std::atomic<bool>> populated_;  // by block
  bool whole_ = false;                        // the file behind it has no holes
  memory::Device* locked_for_ = nullptr;
  std::atomic<bool> lock_tried_;
};
using ImportRef = std::shared_ptr<Imported>;

// Takes the descriptor. Known by what the kernel says that it is, not by what the peer calls it.
// Errors as Device::Import. Setup thread only.
absl::StatusOr<ImportRef> ImportOnce(memory::Device& device, memory::Export from_peer);

}  // namespace verbena::fabric::shm
