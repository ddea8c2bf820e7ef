#pragma once
// FakeStream: a queue of a fake device's work, which ends when the test says so. Any thread.
//
//   FakeStream stream;
//   stream.Launch([&] { fake.Write(tensor, bytes, n); });   // a kernel: nothing happens yet
//   tensor.After(DeviceStream(&stream));
//   stream.Finish();                                        // it has run; the tensor is written
#include <atomic>
#include <deque>
#include <functional>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"

namespace verbena::memory {

class FakeStream {
 public:
  using Flag = std::shared_ptr<std::atomic<bool>>;

  // Queues work that ends, and has its effect, in a later Finish.
  void Launch(std::function<void()> work);
  // Lets so many more of them end, in their turn.
  void Finish(int count = 1);
  // While a graph is captured from it, the device queues nothing there, and says so.
  void Capture(bool on) { captured_.store(on); }
  bool captured() const { return captured_.load(); }
  // Of those that were launched.
  size_t pending();

  // ---- for FakeDevice
  // True once what is queued now has ended.
  Flag Record();
  // What is queued from now on waits for it. Whoever sets the flag calls Advance.
  void WaitFor(Flag flag);
  void Advance();

 private:
  struct Entry {
    std::function<void()> work;  // a kernel
    Flag wait;                   // or this
    Flag reached;                // or that
  };
  void AdvanceLocked() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  std::atomic<bool> captured_{false};
  absl::Mutex mutex_;
  std::deque<Entry> queue_ ABSL_GUARDED_BY(mutex_);
  int may_finish_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace verbena::memory
