#pragma once
// What peers exported, mapped here. One mapping serves all links of this process through which the
// same memory is READ: links to one peer, and to peers that pass on what they got. It ends with the
// last of them.
#include <atomic>
#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "rpc/memory/device.h"

namespace verbena::fabric::shm {

class Imported {
 public:
  explicit Imported(const memory::Mapping& mapping) : mapping_(mapping) {}
  // Any thread: the setup thread unmaps.
  ~Imported();
  Imported(const Imported&) = delete;
  Imported& operator=(const Imported&) = delete;

  const memory::Mapping& mapping() const { return mapping_; }
  // So that READs of it do not fault page by page. Setup thread only.
  void Populate();
  // Any thread.
  bool populated() const { return populated_.load(std::memory_order_relaxed); }

 private:
  const memory::Mapping mapping_;
  std::atomic<bool> populated_{false};
};
using ImportRef = std::shared_ptr<Imported>;

// Takes the descriptor. Known by what the kernel says that it is, not by what the peer calls it.
// Errors as Device::Import. Setup thread only.
absl::StatusOr<ImportRef> ImportOnce(memory::Device& device, memory::Export from_peer);

}  // namespace verbena::fabric::shm
