#include "rpc/base/fork.h"

#include <pthread.h>
#include <sys/stat.h>
#include <unistd.h>

#include <atomic>
#include <mutex>
#include <unordered_map>

namespace verbena {
namespace {

// Which file a descriptor names.
struct File {
  dev_t device = 0;
  ino_t number = 0;
  bool operator==(const File&) const = default;
};
File FileOf(int fd) {
  struct stat info;
  return fstat(fd, &info) == 0 ? File{info.st_dev, info.st_ino} : File{};
}

// Never destroyed: threads may end links while the process exits. As many as there were descriptors
// at one time.
struct Descriptors {
  std::mutex mutex;
  std::unordered_map<int, File> open;
};
Descriptors& TheDescriptors() {
  static Descriptors* descriptors = new Descriptors;
  return *descriptors;
}

void BeforeFork() { TheDescriptors().mutex.lock(); }
void InParent() { TheDescriptors().mutex.unlock(); }
void InChild() {
  internal::forked.store(true, std::memory_order_relaxed);
  for (const auto& [fd, file] : TheDescriptors().open) {
    if (FileOf(fd) == file) ::close(fd);
  }
  TheDescriptors().mutex.unlock();
}

}  // namespace

constinit std::atomic<bool> internal::forked{false};

void WatchForFork() {
  static const int once = pthread_atfork(BeforeFork, InParent, InChild);
  (void)once;
}

absl::Status ForkedError() {
  return absl::FailedPreconditionError(
      "a process that was forked from one with reactors cannot use the library; exec, or fork "
      "earlier");
}

void CloseInForkChild(int fd) {
  WatchForFork();
  const File file = FileOf(fd);
  std::lock_guard lock(TheDescriptors().mutex);
  TheDescriptors().open[fd] = file;
}

void ForgetForkChild(int fd) {
  std::lock_guard lock(TheDescriptors().mutex);
  TheDescriptors().open.erase(fd);
}

}  // namespace verbena
