#pragma once
// The timers of a reactor: a binary heap of pointers; each timer knows its place, so that moving
// and cancelling are O(log n). One thread at a time (the seat).
#include <cstdint>
#include <utility>
#include <vector>

#include "rpc/base/check.h"
#include "rpc/reactor/reactor.h"

namespace verbena::reactor {

class TimerHeap {
 public:
  TimerHeap() {
    heap_.reserve(1024);
  }  // the message path does not allocate until so many are armed

  bool empty() const { return heap_.empty(); }
  int64_t first_due_ns() const { return heap_.front()->due_ns; }

  void Arm(Timer& timer, int64_t due_ns) {
    timer.due_ns = due_ns;
    if (timer.heap_index == kNotArmed) {
      timer.heap_index = static_cast<uint32_t>(heap_.size());
      heap_.push_back(&timer);
    }
    VERBENA_DCHECK(heap_[timer.heap_index] == &timer, "a timer of another reactor");
    SiftDown(SiftUp(timer.heap_index));
  }

  void Cancel(Timer& timer) {
    if (timer.heap_index == kNotArmed) return;
    const uint32_t hole = timer.heap_index;
    VERBENA_DCHECK(hole < heap_.size() && heap_[hole] == &timer, "a timer of another reactor");
    timer.heap_index = kNotArmed;
    Timer* const last = heap_.back();
    heap_.pop_back();
    if (last == &timer) return;
    Put(hole, last);
    SiftDown(SiftUp(hole));
  }

  bool Due(int64_t now_ns) const { return !heap_.empty() && heap_.front()->due_ns <= now_ns; }
  // The first timer that is due, disarmed; null = none.
  Timer* PopDue(int64_t now_ns) {
    if (!Due(now_ns)) return nullptr;
    Timer* const timer = heap_.front();
    Cancel(*timer);
    return timer;
  }

 private:
  static constexpr uint32_t kNotArmed = ~0u;

  void Put(uint32_t index, Timer* timer) {
    heap_[index] = timer;
    timer->heap_index = index;
  }
  uint32_t SiftUp(uint32_t index) {
    Timer* const timer = heap_[index];
    while (index > 0) {
      const uint32_t parent = (index - 1) / 2;
      if (heap_[parent]->due_ns <= timer->due_ns) break;
      Put(index, heap_[parent]);
      index = parent;
    }
    Put(index, timer);
    return index;
  }
  void SiftDown(uint32_t index) {
    Timer* const timer = heap_[index];
    const auto size = static_cast<uint32_t>(heap_.size());
    for (;;) {
      uint32_t child = 2 * index + 1;
      if (child >= size) break;
      if (child + 1 < size && heap_[child + 1]->due_ns < heap_[child]->due_ns) ++child;
      if (timer->due_ns <= heap_[child]->due_ns) break;
      Put(index, heap_[child]);
      index = child;
    }
    Put(index, timer);
  }

  std::vector<Timer*> heap_;
};

}  // namespace verbena::reactor
