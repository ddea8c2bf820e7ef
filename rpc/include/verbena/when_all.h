#pragma once
// WhenAll: runs several tasks at the same time and waits for all, e.g. to read and to write one
// stream:
//   co_await WhenAll(Send(stream), Receive(stream));
#include <coroutine>
#include <optional>
#include <tuple>
#include <utility>
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

struct Join {
  std::coroutine_handle<> parent;
  size_t left = 0;
  void Done() {
    if (--left == 0) parent.resume();
  }
};

// Runs one child and reports to the join. Its frame destroys itself at the end.
struct JoinedChild {
  struct promise_type {
    static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
    static void operator delete(void* frame, size_t bytes) noexcept { FreeFrame(frame, bytes); }
    JoinedChild get_return_object() { return {}; }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_never final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }  // the child's own exception is caught below
  };
};
template <class T>
struct WhenAllResult {
  std::optional<typename WhenAllSlot<T>::type> value;
  std::exception_ptr error;
};
template <class T>
JoinedChild RunChild(Task<T>& task, WhenAllResult<T>& result, Join& join) {
  try {
    if constexpr (std::is_void_v<T>) {
      co_await std::move(task);
      result.value.emplace();
    } else {
      result.value.emplace(co_await std::move(task));
    }
  } catch (...) {
    result.error = std::current_exception();
  }
  join.Done();
}

template <class... T>
class WhenAllAwaiter {
 public:
  explicit WhenAllAwaiter(Task<T>&... tasks) : tasks_(tasks...) {}
  bool await_ready() const { return false; }
  bool await_suspend(std::coroutine_handle<> parent) {
    join_.parent = parent;
    join_.left = sizeof...(T) + 1;
    Start(std::index_sequence_for<T...>());
    return --join_.left != 0;
  }
  // Rethrows the first exception in the order of the tasks.
  std::tuple<typename WhenAllSlot<T>::type...> await_resume() {
    return Take(std::index_sequence_for<T...>());
  }

 private:
  template <size_t... I>
  void Start(std::index_sequence<I...>) {
    (RunChild<T>(std::get<I>(tasks_), std::get<I>(results_), join_), ...);
  }
  template <size_t... I>
  std::tuple<typename WhenAllSlot<T>::type...> Take(std::index_sequence<I...>) {
    (Rethrow(std::get<I>(results_).error), ...);
    return {*std::move(std::get<I>(results_).value)...};
  }
  static void Rethrow(const std::exception_ptr& error) {
    if (error) std::rethrow_exception(error);
  }

  std::tuple<Task<T>&...> tasks_;
  std::tuple<WhenAllResult<T>...> results_;
  Join join_;
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
