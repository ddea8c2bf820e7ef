// Does ThreadSanitizer see what abseil orders, and nothing that it does not? Without an argument
// nothing here is a race; with one there is, and the program must fail.
#include <cstdio>
#include <thread>
#include <vector>

#include "absl/status/status.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

namespace {

constexpr int kTurns = 200;

void GuardedByMutex() {
  absl::Mutex mutex;
  std::vector<int> values;
  auto append = [&] {
    for (int i = 0; i < kTurns; ++i) {
      absl::MutexLock lock(&mutex);
      values.push_back(i);
    }
  };
  std::thread other(append);
  append();
  other.join();
}

// Two threads take turns, one by condition variable or LockWhen, the other by Await.
void TakingTurns(bool by_condition_variable) {
  absl::Mutex mutex;
  absl::CondVar changed;
  int turn = 0;
  auto odd = [&turn] { return turn % 2 == 1; };
  auto even = [&turn] { return turn % 2 == 0; };
  std::thread other([&] {
    for (int i = 0; i < kTurns; ++i) {
      if (by_condition_variable) {
        mutex.Lock();
        while (!odd()) changed.Wait(&mutex);
      } else {
        mutex.LockWhen(absl::Condition(&odd));
      }
      ++turn;
      mutex.Unlock();
    }
  });
  for (int i = 0; i < kTurns; ++i) {
    absl::MutexLock lock(&mutex);
    mutex.Await(absl::Condition(&even));
    ++turn;
    changed.Signal();
  }
  other.join();
}

void HandedOver() {
  for (bool poll : {false, true}) {
    absl::Notification done;
    int value = 0;
    std::thread other([&] {
      value = 1;
      done.Notify();
    });
    if (poll) {
      while (!done.HasBeenNotified()) std::this_thread::yield();
    } else {
      done.WaitForNotification();
    }
    ++value;
    other.join();
  }
  absl::BlockingCounter counter(1);
  int value = 0;
  std::thread other([&] {
    value = 1;
    counter.DecrementCount();
  });
  counter.Wait();
  ++value;
  other.join();
}

void SharedStatus() {
  for (int i = 0; i < kTurns; ++i) {
    absl::Status status = absl::InternalError("long enough to lie on the heap, not in the object");
    std::thread other([copy = status]() mutable {
      if (copy.message().empty()) std::puts("empty");
      copy = absl::OkStatus();
    });
    status = absl::OkStatus();
    other.join();
  }
}

void Race() {
  int value = 0;
  std::thread other([&value] { ++value; });
  ++value;
  other.join();
}

}  // namespace

int main(int argc, char**) {
  GuardedByMutex();
  TakingTurns(true);
  TakingTurns(false);
  HandedOver();
  SharedStatus();
  if (argc > 1) Race();
}
