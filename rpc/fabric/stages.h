#pragma once
// fabric::Stages: a few buffers of a chunk each, between a socket or a NIC and memory that it, or
// the CPU, may not touch. Copies of devices and those of the transport run at the same time: while
// one stage is sent or received, others are being filled or emptied. Small enough that what a
// device wrote is still in the processor's cache when a socket copies it. Reactor thread only.
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
  static constexpr uint32_t kNone = ~0u;

  // `stage_bytes`: of one, the largest chunk of a device's memory. Of the pools, which are
  // page-locked where GPUs are used. Where the pools would have to grow first, which is asked for,
  // it is other memory until Rest: devices then copy by way of stages of their own.
  explicit Stages(uint32_t stage_bytes);

  // kNone: none is free.
  uint32_t Take();
  void Give(uint32_t stage) { free_ |= 1u << stage; }
  std::byte* At(uint32_t stage);
  bool unused() const { return free_ == kAll; }

 private:
  static constexpr uint32_t kAll = (1u << kCount) - 1;

  const size_t stage_bytes_;
  memory::Block block_;
  std::unique_ptr<std::byte[]> heap_;  // or this
  uint32_t free_ = kAll;
};

}  // namespace verbena::fabric
