#pragma once
// Frame buffers that the device knows: the receive pool that all links of a reactor share, and the
// send buffers. Disjoint, so that what waits to be sent can never keep a receive from being posted.
#include <infiniband/verbs.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/fabric/verbs/sizes.h"
#include "rpc/memory/slab.h"

namespace verbena::fabric::verbs {

// Memory of the library's, registered with one protection domain for nothing but SEND and receive.
class FrameMemory {
 public:
  // May block. Errors: calls.h, memory::Slab.
  static absl::StatusOr<std::unique_ptr<FrameMemory>> Create(ibv_pd* pd, uint64_t bytes, int node);
  ~FrameMemory();
  std::byte* data() const { return slab_->base(); }
  uint32_t lkey() const { return mr_->lkey; }

 private:
  FrameMemory(std::shared_ptr<memory::Slab> slab, ibv_mr* mr) : slab_(std::move(slab)), mr_(mr) {}
  std::shared_ptr<memory::Slab> slab_;
  ibv_mr* mr_;
};

// Buffers of one segment each, posted for receiving. With an SRQ the pool posts them there, and
// they serve whoever sends; without one they are posted to a queue pair each, a window for each
// link. Grows with the links, since the sum of their windows is never above what is posted; shrinks
// never.
class ReceivePool {
 public:
  ReceivePool(ibv_pd* pd, ibv_srq* srq, uint32_t buffer_bytes, uint32_t buffers_max, int node);
  ~ReceivePool();

  // Setup thread only. At least so many buffers exist; with an SRQ the new ones are posted.
  // RESOURCE_EXHAUSTED names the limit.
  absl::Status Grow(uint32_t buffers);
  // Setup thread only, without an SRQ: posts `count` buffers to a queue pair, whose they are until
  // they are returned, after its end.
  absl::StatusOr<std::vector<uint32_t>> PostTo(ibv_qp* qp, uint32_t count);
  void Return(absl::Span<const uint32_t> buffers);

  // Reactor thread only from here. Where a received frame lies.
  const std::byte* data(uint32_t buffer) const {
    return steps_[buffer / kStepBuffers].load(std::memory_order_acquire)->data() +
           size_t{buffer % kStepBuffers} * buffer_bytes_;
  }
  // The frame has been looked at. With an SRQ: waits for Repost.
  void Give(uint32_t buffer) { given_.push_back(buffer); }
  // Without one: posted to the queue pair that it came from.
  void GiveTo(uint32_t buffer, ibv_qp* qp);
  // Posts what was given back, with one call: to be called when all spare receives wait, and when
  // there is nothing better to do. What the device refuses is tried again the next time.
  void Repost();
  bool MustRepost() const { return given_.size() >= kReceivesSpare; }

  // Any thread: all that exist.
  uint64_t bytes() const { return uint64_t{buffers_} * buffer_bytes_; }

 private:
  static constexpr uint32_t kStepBuffers = 256;
  static constexpr uint32_t kStepsMax = 256;

  ibv_recv_wr WorkFor(uint32_t buffer, ibv_sge& piece) const;
  // Takes what was posted off `buffers`.
  absl::Status Post(absl::Span<const uint32_t>& buffers, ibv_qp* qp);

  ibv_pd* const pd_;
  ibv_srq* const srq_;
  const uint32_t buffer_bytes_;
  const uint32_t buffers_max_;
  const int node_;
  std::array<std::atomic<FrameMemory*>, kStepsMax> steps_{};
  std::atomic<uint32_t> buffers_{0};
  std::vector<uint32_t> given_;
  bool refused_ = false;
  std::mutex free_mutex_;
  std::vector<uint32_t> free_;  // without an SRQ: posted nowhere
};

// Buffers of one segment each, to send from. Reactor thread only.
class SendBuffers {
 public:
  SendBuffers(std::unique_ptr<FrameMemory> memory, uint32_t buffer_bytes, uint32_t count);
  bool empty() const { return free_.empty(); }
  uint32_t Take();
  void Give(uint32_t buffer) { free_.push_back(buffer); }
  std::byte* data(uint32_t buffer) const {
    return memory_->data() + size_t{buffer} * buffer_bytes_;
  }
  uint32_t lkey() const { return memory_->lkey(); }

 private:
  std::unique_ptr<FrameMemory> memory_;
  const uint32_t buffer_bytes_;
  std::vector<uint32_t> free_;
};

}  // namespace verbena::fabric::verbs
