#include "rpc/fabric/verbs/buffers.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/types/span.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/work_id.h"

namespace verbena::fabric::verbs {

absl::StatusOr<std::unique_ptr<FrameMemory>> FrameMemory::Create(ibv_pd* pd, uint64_t bytes,
                                                                 int node) {
  absl::StatusOr<std::shared_ptr<memory::Slab>> slab = memory::Slab::Create(bytes, node);
  if (!slab.ok()) return slab.status();
  const int access = IBV_ACCESS_LOCAL_WRITE;  // an int: the macro below mixes enumerations
  absl::StatusOr<ibv_mr*> mr = Made("ibv_reg_mr", ibv_reg_mr(pd, (*slab)->base(), bytes, access));
  if (!mr.ok()) return mr.status();
  return std::unique_ptr<FrameMemory>(new FrameMemory(*std::move(slab), *mr));
}

FrameMemory::~FrameMemory() {
  const absl::Status status = ErrnoReturned("ibv_dereg_mr", ibv_dereg_mr(mr_));
  if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
}

ReceivePool::ReceivePool(ibv_pd* pd, ibv_srq* srq, uint32_t buffer_bytes, uint32_t buffers_max,
                         int node)
    : pd_(pd),
      srq_(srq),
      buffer_bytes_(buffer_bytes),
      buffers_max_(std::min(buffers_max, kStepBuffers * kStepsMax)),
      node_(node) {}

ReceivePool::~ReceivePool() {
  for (std::atomic<FrameMemory*>& step : steps_) delete step.load(std::memory_order_relaxed);
}

absl::Status ReceivePool::Grow(uint32_t buffers) {
  if (buffers > buffers_max_) {
    return absl::ResourceExhaustedError(absl::StrCat("verbs: ", buffers, " receives, the limit is ",
                                                     buffers_max_, " on this device"));
  }
  uint32_t have = buffers_.load(std::memory_order_relaxed);
  while (have < buffers) {
    absl::StatusOr<std::unique_ptr<FrameMemory>> step =
        FrameMemory::Create(pd_, uint64_t{kStepBuffers} * buffer_bytes_, node_);
    if (!step.ok()) return step.status();
    steps_[have / kStepBuffers].store(step->release(), std::memory_order_release);
    const uint32_t count = std::min(kStepBuffers, buffers_max_ - have);
    std::vector<uint32_t> made(count);
    std::iota(made.begin(), made.end(), have);
    if (srq_ != nullptr) {
      absl::Span<const uint32_t> rest = made;
      absl::Status status = Post(rest, nullptr);
      if (!status.ok()) return status;
    } else {
      Return(made);
    }
    have = buffers_.fetch_add(count, std::memory_order_relaxed) + count;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<uint32_t>> ReceivePool::PostTo(ibv_qp* qp, uint32_t count) {
  std::vector<uint32_t> taken;
  {
    const std::lock_guard lock(free_mutex_);
    VERBENA_CHECK(free_.size() >= count, count, " of ", free_.size(), " receive buffers");
    taken.assign(free_.end() - count, free_.end());
    free_.resize(free_.size() - count);
  }
  absl::Span<const uint32_t> rest = taken;
  const absl::Status status = Post(rest, qp);
  if (status.ok()) return taken;
  Return(taken);
  return status;
}

void ReceivePool::Return(absl::Span<const uint32_t> buffers) {
  const std::lock_guard lock(free_mutex_);
  free_.insert(free_.end(), buffers.begin(), buffers.end());
}

ibv_recv_wr ReceivePool::WorkFor(uint32_t buffer, ibv_sge& piece) const {
  piece = {reinterpret_cast<uint64_t>(data(buffer)), buffer_bytes_,
           steps_[buffer / kStepBuffers].load(std::memory_order_acquire)->lkey()};
  ibv_recv_wr work = {};
  work.wr_id = WorkId{WorkKind::kReceive, 0, buffer}.word();
  work.sg_list = &piece;
  work.num_sge = 1;
  return work;
}

absl::Status ReceivePool::Post(absl::Span<const uint32_t>& buffers, ibv_qp* qp) {
  constexpr size_t kChain = 64;
  std::array<ibv_recv_wr, kChain> works;
  std::array<ibv_sge, kChain> pieces;
  while (!buffers.empty()) {
    const size_t count = std::min(buffers.size(), kChain);
    for (size_t i = 0; i < count; ++i) {
      works[i] = WorkFor(buffers[i], pieces[i]);
      works[i].next = i + 1 < count ? &works[i + 1] : nullptr;
    }
    ibv_recv_wr* refused = nullptr;
    const int result = srq_ != nullptr ? ibv_post_srq_recv(srq_, works.data(), &refused)
                                       : ibv_post_recv(qp, works.data(), &refused);
    if (result != 0) {
      if (refused != nullptr) buffers.remove_prefix(static_cast<size_t>(refused - works.data()));
      return ErrnoReturned(srq_ != nullptr ? "ibv_post_srq_recv" : "ibv_post_recv", result);
    }
    buffers.remove_prefix(count);
  }
  return absl::OkStatus();
}

void ReceivePool::GiveTo(uint32_t buffer, ibv_qp* qp) {
  // One that fails takes no more; what it had is returned after its end.
  absl::Span<const uint32_t> rest(&buffer, 1);
  Post(rest, qp).IgnoreError();
}

void ReceivePool::Repost() {
  if (given_.empty()) return;
  absl::Span<const uint32_t> rest = given_;
  const absl::Status status = Post(rest, nullptr);
  if (!status.ok() && !std::exchange(refused_, true)) {
    VERBENA_LOG(kError, "verbs: ", rest.size(), " receives wait: ", status.message());
  }
  if (status.ok()) refused_ = false;
  given_.erase(given_.begin(), given_.end() - static_cast<std::ptrdiff_t>(rest.size()));
}

SendBuffers::SendBuffers(std::unique_ptr<FrameMemory> memory, uint32_t buffer_bytes, uint32_t count)
    : memory_(std::move(memory)), buffer_bytes_(buffer_bytes), free_(count) {
  std::iota(free_.rbegin(), free_.rend(), 0);
}

uint32_t SendBuffers::Take() {
  VERBENA_DCHECK(!free_.empty());
  const uint32_t buffer = free_.back();
  free_.pop_back();
  return buffer;
}

}  // namespace verbena::fabric::verbs
