#include "rpc/fabric/device_copies.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace verbena::fabric {
namespace {

// Per tick and device. Sockets and NICs are slower than any device.
constexpr size_t kBudgetBytes = 1 << 20;

}  // namespace

bool DeviceCopies::Start(memory::Device& device, absl::Span<const memory::CopyPiece> pieces,
                         const Job& job) {
  std::unique_ptr<memory::CopyEngine>& engine = engines_[&device];
  if (engine == nullptr) engine = device.MakeCopyEngine();
  if (!engine->Copy(next_, pieces, {})) return false;
  jobs_.emplace(next_++, job);
  return true;
}

bool DeviceCopies::Busy(LinkId link, const Lane* lane) const {
  return std::any_of(jobs_.begin(), jobs_.end(), [=](const auto& entry) {
    const Job& job = entry.second;
    return job.link == link && (lane == nullptr || job.lane == *lane);
  });
}

bool DeviceCopies::Poll(absl::FunctionRef<void(const Job& job, bool ok)> done) {
  std::vector<std::pair<uint64_t, bool>> ended;
  for (const auto& [device, engine] : engines_) {
    engine->Poll(
        kBudgetBytes, [] { return false; },
        [&ended](uint64_t tag, bool ok) { ended.emplace_back(tag, ok); });
  }
  for (const auto& [tag, ok] : ended) {
    const auto it = jobs_.find(tag);
    const Job job = std::move(it->second);
    jobs_.erase(it);
    done(job, ok);
  }
  return !ended.empty();
}

}  // namespace verbena::fabric
