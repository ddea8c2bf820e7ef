#pragma once
// fabric::Stages: a few buffers of a chunk each, between a socket or a NIC and memory that it, or
// the CPU, may not touch. Copies of devices and those of the transport run at the same time: while
// one stage is sent or received, others are being filled or emptied. Small enough that what a
// device wrote is still in the processor's cache when a socket copies it. Reactor thread only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>

#include "rpc/memory/region.h"

namespace verbena::fabric {

class Stages {
 public:
  // What one tick sends, and as much again that is copied meanwhile. Fewer, and one waits for the
  // other; more, and they do not fit the caches.
  static constexpr uint32_t kCount = 8;
  static constexpr uint32_t kUnitsMax = 32;
  static constexpr uint32_t kNone = ~0u;

  // At most kCount at a time, each of as many of `units` units as its bytes take. Of the pools,
  // which are page-locked where GPUs are used. Where the pools would have to grow first, which is
  // asked for, it is other memory until Rest: devices then copy by way of stages of their own.
  explicit Stages(uint32_t unit_bytes, uint32_t units = kCount);

  // One for `bytes`, at most all units; the lowest, which was used last. kNone: there is no room
  // now.
  uint32_t Take(size_t bytes);
  void Give(uint32_t stage);
  std::byte* At(uint32_t stage);
  bool unused() const { return taken_ == 0; }

 private:
  const size_t unit_bytes_;
  const size_t bytes_;
  memory::Block block_;
  std::unique_ptr<std::byte[]> heap_;         // or this
  uint32_t free_;                             // units
  uint32_t taken_ = 0;                        // stages
  std::array<uint32_t, kUnitsMax> taken_by_;  // the units of the stage that begins there
};

}  // namespace verbena::fabric
