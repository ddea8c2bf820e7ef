#include "rpc/memory/helpers.h"

#include <atomic>

#include "absl/synchronization/notification.h"
#include "rpc/base/check.h"

namespace verbena::memory {
namespace {

// Replaced ones are never freed: another thread may be using one, and there are only a few in a
// process's life.
struct Installed {
  HelperThreads threads;
  const Installed* before = nullptr;
};
constinit const Installed kNone;
constinit std::atomic<const Installed*> installed{&kNone};

const HelperThreads& Threads() { return installed.load(std::memory_order_acquire)->threads; }

void RunBy(void (*post)(Job), absl::FunctionRef<void()> work) {
  absl::Notification done;
  post([&] {
    work();
    done.Notify();
  });
  done.WaitForNotification();
}

}  // namespace

void SetHelperThreads(const HelperThreads& threads) {
  VERBENA_CHECK((threads.on_reactor == nullptr) == (threads.post_disposal == nullptr) &&
                (threads.on_setup == nullptr) == (threads.post_setup == nullptr) &&
                (threads.on_growth == nullptr) == (threads.post_growth == nullptr));
  installed.store(new Installed{threads, installed.load(std::memory_order_acquire)},
                  std::memory_order_release);
}

void Dispose(Job job) {
  const HelperThreads& threads = Threads();
  if (threads.on_reactor != nullptr && threads.on_reactor()) {
    threads.post_disposal(std::move(job));
  } else {
    std::move(job)();
  }
}

void RunOnSetup(absl::FunctionRef<void()> work) {
  const HelperThreads& threads = Threads();
  if (threads.post_setup == nullptr || threads.on_setup()) {
    work();
  } else {
    RunBy(threads.post_setup, work);
  }
}

bool OnReactor() {
  const HelperThreads& threads = Threads();
  return threads.on_reactor != nullptr && threads.on_reactor();
}

bool OnSetup() {
  const HelperThreads& threads = Threads();
  return threads.on_setup != nullptr && threads.on_setup();
}

void RunOnGrowth(absl::FunctionRef<void()> work) {
  const HelperThreads& threads = Threads();
  if (threads.post_growth == nullptr || OnSetup() || threads.on_growth()) {
    work();
  } else {
    RunBy(threads.post_growth, work);
  }
}

void PostToSetup(Job job) {
  const HelperThreads& threads = Threads();
  if (threads.post_setup == nullptr) {
    std::move(job)();
  } else {
    threads.post_setup(std::move(job));
  }
}

void PostToGrowth(Job job) {
  const HelperThreads& threads = Threads();
  if (threads.post_growth == nullptr) {
    std::move(job)();
  } else {
    threads.post_growth(std::move(job));
  }
}

}  // namespace verbena::memory
