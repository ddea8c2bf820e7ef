#pragma once
// How many bytes of READs a fabric has posted at its NIC: what the NIC does in kAheadNs, as far as
// was seen, so that a frame never waits for long behind them; more while there are no frames. A
// fast NIC has kVerbsReadBytesMax of them all the same; a slow one gets smaller work requests too,
// since each is done at a stretch. Reactor thread only.
#include <algorithm>
#include <cstdint>
#include <utility>

#include "rpc/base/limits.h"

namespace verbena::fabric::verbs {

class ReadPace {
 public:
  static constexpr int64_t kAheadNs = 500'000;
  static constexpr int64_t kAheadAloneNs = 8'000'000;
  // How long frames are expected after the last.
  static constexpr int64_t kAloneAfterNs = 20'000'000;
  // Seen on soft-RoCE: half as much takes a tenth longer per byte; a half more, and frames wait
  // twice as long, since the kernel then leaves it to a thread that has to be scheduled.
  static constexpr uint64_t kBudgetMin = 64 << 10;
  static constexpr uint64_t kBudgetFirst = 1 << 20;
  static constexpr uint32_t kWorkBytesMax = 256 << 10;

  bool full() const { return posted_ >= budget_; }
  uint64_t posted() const { return posted_; }
  uint64_t budget() const { return budget_; }
  // The most that one work request takes.
  uint32_t work_bytes() const {
    return static_cast<uint32_t>(std::clamp<uint64_t>(budget_ / 2, kBudgetMin, kWorkBytesMax));
  }

  void OnPosted(uint64_t bytes, int64_t now_ns) {
    if (posted_ == 0) Restart(now_ns);
    posted_ += bytes;
  }
  // `ok`: they were read; else they say nothing of the NIC's speed.
  void OnDone(uint64_t bytes, bool ok) {
    posted_ -= bytes;
    if (ok) done_ += bytes;
  }
  // A frame was sent or came.
  void OnFrame() { frames_ = true; }
  // When all that is done has been seen. What was half done when it began is the error of a
  // measurement: at least kAheadNs long, it is no more than a work request.
  void Measure(int64_t now_ns) {
    if (done_ < kBudgetMin || now_ns - since_ns_ < kAheadNs) return;
    if (std::exchange(frames_, false)) alone_from_ns_ = now_ns + kAloneAfterNs;
    const double ahead_ns = now_ns < alone_from_ns_ ? kAheadNs : kAheadAloneNs;
    const double seen =
        static_cast<double>(done_) * ahead_ns / static_cast<double>(now_ns - since_ns_);
    const double capped = std::min(seen, static_cast<double>(limits::kVerbsReadBytesMax));
    // A reactor that looks late sees a slow NIC: down by half at most, up at once.
    budget_ = std::max({static_cast<uint64_t>(capped), budget_ / 2, kBudgetMin});
    Restart(now_ns);
  }

 private:
  void Restart(int64_t now_ns) {
    since_ns_ = now_ns;
    done_ = 0;
  }

  uint64_t budget_ = kBudgetFirst;
  uint64_t posted_ = 0;
  uint64_t done_ = 0;  // since since_ns_
  int64_t since_ns_ = 0;
  int64_t alone_from_ns_ = 0;
  bool frames_ = false;
};

}  // namespace verbena::fabric::verbs
