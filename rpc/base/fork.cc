#include "rpc/base/fork.h"

#include <pthread.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_set>

namespace verbena {
namespace {

// Never destroyed: threads may end links while the process exits.
struct Descriptors {
  std::mutex mutex;
  std::unordered_set<int> open;
};
Descriptors& TheDescriptors() {
  static Descriptors* descriptors = new Descriptors;
  return *descriptors;
}

std::atomic<bool> forked{false};

void BeforeFork() { TheDescriptors().mutex.lock(); }
void InParent() { TheDescriptors().mutex.unlock(); }
void InChild() {
  forked.store(true, std::memory_order_relaxed);
  for (int fd : TheDescriptors().open) ::close(fd);
  TheDescriptors().mutex.unlock();
}

}  // namespace

bool Forked() { return forked.load(std::memory_order_relaxed); }

void WatchForFork() {
  static const int once = pthread_atfork(BeforeFork, InParent, InChild);
  (void)once;
}

void CloseInForkChild(int fd) {
  WatchForFork();
  std::lock_guard lock(TheDescriptors().mutex);
  TheDescriptors().open.insert(fd);
}

void ForgetForkChild(int fd) {
  std::lock_guard lock(TheDescriptors().mutex);
  TheDescriptors().open.erase(fd);
}

}  // namespace verbena
