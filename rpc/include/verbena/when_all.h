#pragma once
// WhenAll: runs several tasks at the same time and waits for all, e.g. to read and to write one
// stream:
//   co_await WhenAll(Send(stream), Receive(stream));
#include <coroutine>
#include <cstddef>
#include <tuple>
#include <type_traits>
#include <variant>

#include "verbena/task.h"

namespace verbena {
namespace internal {

template <class T>
struct WhenAllSlot {
  using type = T;
};
template <>
struct WhenAllSlot<void> {
  using type = std::monostate;
};

template <class... T>
class WhenAllAwaiter {
 public:
  explicit WhenAllAwaiter(Task<T>&... tasks) : tasks_(tasks...) {}
  bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    parent_ = parent;
    left_ = sizeof...(T) + 1;
    std::apply([this](Task<T>&... task) { (StartOne(task), ...); }, tasks_);
    return --left_ != 0;
  }
  // Rethrows the first exception in the order of the tasks.
  std::tuple<typename WhenAllSlot<T>::type...> await_resume() {
    return std::apply(
        [](Task<T>&... task) {
          return std::tuple<typename WhenAllSlot<T>::type...>{TakeOne(task)...};
        },
        tasks_);
  }

 private:
  template <class U>
  void StartOne(Task<U>& task) {
    if (TaskAccess::Start(task, &OneEnded, this)) --left_;
  }
  static std::coroutine_handle<> OneEnded(void* argument) {
    auto* self = static_cast<WhenAllAwaiter*>(argument);
    if (--self->left_ != 0) return std::noop_coroutine();
    return self->parent_;
  }
  template <class U>
  static typename WhenAllSlot<U>::type TakeOne(Task<U>& task) {
    if constexpr (std::is_void_v<U>) {
      TaskAccess::Take(task);
      return {};
    } else {
      return TaskAccess::Take(task);
    }
  }

  std::tuple<Task<T>&...> tasks_;
  std::coroutine_handle<> parent_;
  size_t left_ = 0;  // tasks that have not ended, and this while it starts them
};

}  // namespace internal

// All tasks run on the reactor of the caller. Their results, in order, once all have ended; void
// tasks give std::monostate. Where some have thrown, the first in their order is thrown on.
template <class... T>
Task<std::tuple<typename internal::WhenAllSlot<T>::type...>> WhenAll(Task<T>... tasks) {
  internal::WhenAllAwaiter<T...> all(tasks...);
  co_return co_await all;
}

}  // namespace verbena
