#pragma once
// MpscQueue: an intrusive queue that many threads push to and one pops from (Vyukov's). T has a
// member `T* next` that is the queue's while the element is queued. Neither side allocates, locks
// or waits.
#include <atomic>
#include <concepts>
#include <type_traits>

namespace verbena {

// Nodes hold a plain pointer, read and written through std::atomic_ref, so that T stays an
// aggregate-like type.
template <class T>
class MpscQueue {
 public:
  MpscQueue() = default;
  MpscQueue(const MpscQueue&) = delete;
  MpscQueue& operator=(const MpscQueue&) = delete;

  // Any thread. Sequentially consistent: a store of the caller before it, or a load after it, is
  // ordered with the consumer's checks of Empty().
  void Push(T& node) {
    std::atomic_ref<T*>(node.next).store(nullptr, std::memory_order_relaxed);
    T* const previous = newest_.exchange(&node, std::memory_order_seq_cst);
    if (previous == nullptr) {
      oldest_.store(&node, std::memory_order_release);
    } else {
      std::atomic_ref<T*>(previous->next).store(&node, std::memory_order_release);
    }
  }

  // The consumer only. Null: empty, or the oldest push is half done (then Empty() is false: look
  // again later).
  T* Pop() {
    T* const node = oldest_.load(std::memory_order_acquire);
    if (node == nullptr) return nullptr;
    T* next = std::atomic_ref<T*>(node->next).load(std::memory_order_acquire);
    if (next == nullptr) {
      // `node` looks like the only one. Clear oldest_ first: a push that finds the queue empty
      // writes it.
      oldest_.store(nullptr, std::memory_order_relaxed);
      T* expected = node;
      if (newest_.compare_exchange_strong(expected, nullptr, std::memory_order_acq_rel)) {
        return node;
      }
      // A push is between its exchange and its store of node->next. Nobody else writes oldest_ now.
      next = std::atomic_ref<T*>(node->next).load(std::memory_order_acquire);
      if (next == nullptr) {
        oldest_.store(node, std::memory_order_relaxed);
        return nullptr;
      }
    }
    oldest_.store(next, std::memory_order_relaxed);
    return node;
  }

  // Any thread; a hint except for the consumer. False also while a push is half done.
  bool Empty() const { return newest_.load(std::memory_order_seq_cst) == nullptr; }

 private:
  alignas(64) std::atomic<T*> newest_{nullptr};
  alignas(64) std::atomic<T*> oldest_{
      nullptr};  // the consumer's, and the push's that finds it empty
};

}  // namespace verbena
