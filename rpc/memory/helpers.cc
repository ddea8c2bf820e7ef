#include "rpc/memory/helpers.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "rpc/base/check.h"

namespace verbena::memory {
namespace {

const HelperThreads kNone;
std::atomic<const HelperThreads*> threads_now{&kNone};

}  // namespace

void SetHelperThreads(const HelperThreads& threads) {
  VERBENA_CHECK((threads.on_reactor == nullptr) == (threads.post_disposal == nullptr) &&
                (threads.on_setup == nullptr) == (threads.post_setup == nullptr));
  // The old one is never freed: another thread may be using it, and there are only a few in a
  // process's life.
  threads_now.store(new HelperThreads(threads), std::memory_order_release);
}

void Dispose(Job job) {
  const HelperThreads& threads = *threads_now.load(std::memory_order_acquire);
  if (threads.on_reactor != nullptr && threads.on_reactor()) {
    threads.post_disposal(std::move(job));
  } else {
    std::move(job)();
  }
}

void RunOnSetup(absl::FunctionRef<void()> work) {
  const HelperThreads& threads = *threads_now.load(std::memory_order_acquire);
  if (threads.post_setup == nullptr || threads.on_setup()) {
    work();
    return;
  }
  absl::Notification done;
  threads.post_setup([&] {
    work();
    done.Notify();
  });
  done.WaitForNotification();
}

void PostToSetup(Job job) {
  const HelperThreads& threads = *threads_now.load(std::memory_order_acquire);
  if (threads.post_setup == nullptr) {
    std::move(job)();
  } else {
    threads.post_setup(std::move(job));
  }
}

}  // namespace verbena::memory
