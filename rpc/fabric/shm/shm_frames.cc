// The small-message path: no system call, lock or allocation in the steady state.
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/shm/bell.h"
#include "rpc/fabric/shm/shm_fabric.h"

namespace verbena::fabric::shm {
namespace {

// Frames of one link per tick. Higher, and a link at full rate keeps the others waiting; lower, and
// each tick's fixed cost is shared by fewer.
constexpr int kFramesPerTick = 32;
// Bytes copied per tick: in one that brought frames, whose receivers run after it; while frames
// come; and else. A copy yields to a frame after 4 KiB at the latest; this bounds how long other
// work of the reactor's waits.
constexpr size_t kCopyBudgetFrames = 4 * 1024;
constexpr size_t kCopyBudgetBusy = 64 * 1024;
constexpr size_t kCopyBudget = 512 * 1024;
constexpr uint32_t kBusyTicks = 64;
// Hot links that a copy looks at between slices.
constexpr size_t kYieldLooksMax = 16;
// Ticks between two looks at the clock.
constexpr uint32_t kTicksPerLook = 256;

}  // namespace

bool ShmFabric::AcquireFrame(LinkId id, OutFrame& frame) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) return false;
  frame.token = buffers_.Acquire();
  if (frame.token == ~0u) [[unlikely]] {
    WantBuffer(id);
    return false;
  }
  frame.data = buffers_.Data(frame.token);
  frame.capacity = limits::kSegmentBytes;
  frame.bytes = 0;
  return true;
}

void ShmFabric::WantBuffer(LinkId id) {
  if (std::find(want_buffer_.begin(), want_buffer_.end(), id) == want_buffer_.end()) {
    want_buffer_.push_back(id);
  }
}

void ShmFabric::Discard(LinkId, const OutFrame& frame) {
  buffers_.Release(frame.token);
  if (!want_buffer_.empty()) [[unlikely]]
    OfferBuffers();
}

void ShmFabric::OfferBuffers() {
  for (const LinkId waiting : want_buffer_) events_.Sendable(waiting);
  want_buffer_.clear();
}

void ShmFabric::Send(LinkId id, absl::Span<const OutFrame> frames) {
  Link* link = Find(id);
  const bool up = link != nullptr && !link->closing;
  for (const OutFrame& frame : frames) {
    VERBENA_DCHECK(frame.bytes >= 8 && frame.bytes <= frame.capacity, "frame of ", frame.bytes);
    if (up) link->out.Write(frame.data, frame.bytes);
    buffers_.Release(frame.token);
  }
  if (!want_buffer_.empty()) [[unlikely]]
    OfferBuffers();
  if (up) Sent(*link);
}

void ShmFabric::SendCopy(LinkId id, const std::byte* frame, uint32_t bytes) {
  VERBENA_DCHECK(bytes >= 8 && bytes <= traits_.copied_bytes, "frame of ", bytes);
  Link* const link = Find(id);
  if (link == nullptr || link->closing) return;
  link->out.Write(frame, bytes);
  Sent(*link);
}

void ShmFabric::Ring(const Link& link) { RingBell(link.peer_bell); }

bool ShmFabric::PollLink(Link& link, EventSink& sink) {
  if (link.closing) return false;
  const bool asked = StageServer::Asked(link);
  if (asked) [[unlikely]] {
    stages_.Serve(link);
    link.active = true;
  }
  for (int i = 0; i < kFramesPerTick; ++i) {
    const uint64_t commit = link.in.Next();
    if (commit == 0) {
      if (i > 0) return true;
      const bool closed = link.theirs.control().closed.load(std::memory_order_acquire) != 0;
      // What was sent before is seen now at the latest.
      if ((closed || link.hung_up) && link.in.Next() == 0) [[unlikely]] {
        Fail(link, absl::UnavailableError(closed ? "shm: the peer closed the link"
                                                 : "shm: the peer is gone"));
        return true;
      }
      return asked;
    }
    const uint32_t bytes = RingReader::BytesOf(commit);
    if (bytes < 8 || bytes > limits::kSegmentBytes) [[unlikely]] {
      Fail(link,
           absl::DataLossError(absl::StrCat("shm: a frame of ", bytes, " bytes; limits are 8 and ",
                                            limits::kSegmentBytes)));
      return true;
    }
    link.in.Take(commit, bytes, frame_);
    link.active = true;
    sink.OnFrame(link.id, {frame_, bytes});
    if (link.closing) return true;
  }
  return true;
}

bool ShmFabric::PollCold(EventSink& sink) {
  size_t looks = scan_cold_ ? cold_.size() : 1;
  scan_cold_ = false;
  bool any = false;
  for (; looks > 0 && !cold_.empty(); --looks) {
    if (next_cold_ >= cold_.size()) next_cold_ = 0;
    Link& link = *cold_[next_cold_];
    if (!HasNews(link)) {
      ++next_cold_;
      continue;
    }
    Heat(link);  // takes it out of the list
    any |= PollLink(link, sink);
  }
  return any;
}

bool ShmFabric::FrameWaits() const {
  const size_t looks = std::min(hot_.size(), kYieldLooksMax);
  for (size_t i = 0; i < looks; ++i) {
    if (!hot_[i]->closing && hot_[i]->in.Next() != 0) return true;
  }
  return false;
}

bool ShmFabric::Poll(EventSink& sink) {
  // A process that has never talked over this fabric pays next to nothing here.
  if (links_.empty() && events_.empty() && !inbox_->any()) return false;
  return PollAll(sink);
}

bool ShmFabric::PollAll(EventSink& sink) {
  bool any = false;
  // Sending to a cold link appends to the list.
  for (size_t i = 0; i < hot_.size(); ++i) {
    if (HasNews(*hot_[i])) any |= PollLink(*hot_[i], sink);
  }
  if (!cold_.empty()) any |= PollCold(sink);
  busy_ticks_ = any ? kBusyTicks : busy_ticks_ - (busy_ticks_ > 0);
  if (inbox_->any()) [[unlikely]]
    TakeResults();
  if (transfers_.any() || stages_.busy()) {
    const size_t budget = any ? kCopyBudgetFrames : busy_ticks_ > 0 ? kCopyBudgetBusy : kCopyBudget;
    any |= transfers_.busy() || stages_.busy();
    any |= transfers_.Work(budget, [this] { return FrameWaits(); });
    if (stages_.busy()) stages_.Work(budget, [this] { return FrameWaits(); });
  }
  if (!endings_.empty()) [[unlikely]]
    any |= AdvanceRevocations();
  if (!closing_.empty() || !lane_breaks_.empty()) [[unlikely]]
    any |= AdvanceEnds();
  if (!events_.empty() || !ending_.empty()) {
    Deliver(sink);
    any = true;
  }
  if (++ticks_ % kTicksPerLook == 0) [[unlikely]]
    Housekeep();
  return any;
}

}  // namespace verbena::fabric::shm
