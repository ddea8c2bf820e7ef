#include "rpc/reactor/stall.h"

#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/reactor/service_threads.h"

namespace verbena::reactor {
namespace {

// Lines per reactor: a handler that is slow each time must not fill the log.
constexpr int64_t kReportEveryNs = 1'000'000'000;

}  // namespace

void StallWatch::Awake() {
  awake_.store(true);
  if (threshold_ > absl::ZeroDuration() && !scheduled_.exchange(true)) Schedule();
}

void StallWatch::Schedule() {
  Watch::Get().PostAfter(threshold_ / 2, [self = shared_from_this()] { self->Look(); });
}

// Sees each stall of more than 1.5 thresholds, and none below one threshold.
void StallWatch::Look() {
  const uint64_t sequence = sequence_.load(std::memory_order_acquire);
  const char* const method = method_.load(std::memory_order_relaxed);
  const int64_t now_ns = SteadyNs();
  if (sequence != seen_sequence_) {
    seen_sequence_ = sequence;
    seen_since_ns_ = now_ns;
    reported_ = false;
  }
  const absl::Duration held = absl::Nanoseconds(now_ns - seen_since_ns_);
  if (method != nullptr && !reported_ && held >= threshold_ &&
      sequence_.load(std::memory_order_acquire) == sequence && !stopped_.load()) {
    reported_ = true;
    if (last_report_ns_ != 0 && now_ns - last_report_ns_ < kReportEveryNs) {
      ++unreported_;
    } else {
      last_report_ns_ = now_ns;
      VERBENA_LOG(kWarning, "reactor ", name_, ": ", method, " has held it for more than ",
                  absl::ToInt64Milliseconds(held),
                  " ms; nothing else runs there meanwhile. Mark the method blocking in its .proto, "
                  "or move the work to a thread",
                  unreported_ == 0
                      ? ""
                      : absl::StrCat(" (", unreported_, " more stalls since the last report)"));
      unreported_ = 0;
    }
  }
  if (stopped_.load()) return;
  if (awake_.load()) return Schedule();
  scheduled_.store(false);
  // It may have woken up between the two lines above, and have left the scheduling to us.
  if (awake_.load() && !scheduled_.exchange(true)) Schedule();
}

}  // namespace verbena::reactor
