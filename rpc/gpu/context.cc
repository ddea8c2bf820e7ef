#include "rpc/gpu/context.h"

#include "absl/strings/str_cat.h"

namespace verbena::gpu {

PrimaryContext::~PrimaryContext() {
  if (taken()) driver_.cuDevicePrimaryCtxRelease_v2(ordinal_);
}

absl::StatusOr<abi::Context> PrimaryContext::Get() {
  if (const abi::Context context = context_.load(std::memory_order_acquire)) return context;
  {
    absl::MutexLock lock(&mutex_);
    if (const abi::Context context = context_.load(std::memory_order_relaxed)) return context;
    abi::Context made = nullptr;
    const abi::Result r = driver_.cuDevicePrimaryCtxRetain(&made, ordinal_);
    if (r != abi::kSuccess) {
      return StatusOf(driver_, r, absl::StrCat("the primary context of cuda:", ordinal_));
    }
    context_.store(made, std::memory_order_release);
  }
  if (on_taken_) on_taken_();
  return context_.load(std::memory_order_relaxed);
}

}  // namespace verbena::gpu
