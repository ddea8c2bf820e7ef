#include "rpc/memory/fake_stream.h"

#include <utility>

namespace verbena::memory {

void FakeStream::Launch(std::function<void()> work) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back({std::move(work), nullptr, nullptr});
  AdvanceLocked();
}

void FakeStream::Finish(int count) {
  absl::MutexLock lock(&mutex_);
  may_finish_ += count;
  AdvanceLocked();
}

size_t FakeStream::pending() {
  absl::MutexLock lock(&mutex_);
  size_t kernels = 0;
  for (const Entry& entry : queue_) kernels += entry.work != nullptr;
  return kernels;
}

FakeStream::Flag FakeStream::Record() {
  absl::MutexLock lock(&mutex_);
  Flag reached = std::make_shared<std::atomic<bool>>(false);
  queue_.push_back({nullptr, nullptr, reached});
  AdvanceLocked();
  return reached;
}

void FakeStream::WaitFor(Flag flag) {
  absl::MutexLock lock(&mutex_);
  queue_.push_back({nullptr, std::move(flag), nullptr});
}

void FakeStream::Advance() {
  absl::MutexLock lock(&mutex_);
  AdvanceLocked();
}

void FakeStream::AdvanceLocked() {
  while (!queue_.empty()) {
    Entry& front = queue_.front();
    if (front.work != nullptr) {
      if (may_finish_ == 0) return;
      --may_finish_;
      front.work();
    } else if (front.wait != nullptr) {
      if (!front.wait->load(std::memory_order_acquire)) return;
    } else {
      front.reached->store(true, std::memory_order_release);
    }
    queue_.pop_front();
  }
}

}  // namespace verbena::memory
