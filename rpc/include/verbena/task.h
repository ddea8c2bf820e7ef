#pragma once
// Task<T>: a lazy coroutine. It starts when it is awaited (or given to Run, Spawn, WhenAll), runs
// on one reactor, and is awaited once, as an rvalue. A function that never suspends returns a value
// instead and has no frame:
//   Task<absl::Status> SayHello(...) { reply.set_text("hi"); return absl::OkStatus(); }
//
// Invariant: a child is started inline by the awaiting parent, without symmetric transfer, so that
// a loop of a million awaits runs on a flat stack in every build mode.
#include <coroutine>
#include <cstddef>
#include <exception>
#include <optional>
#include <type_traits>
#include <utility>
#include <variant>

namespace verbena {

template <class T = void>
class Task;

namespace internal {

// Coroutine frames come from free lists of the thread. Out of line: inlined they make g++ warn of
// mismatched new/delete.
void* AllocateFrame(size_t bytes);
void FreeFrame(void* frame, size_t bytes) noexcept;

class PromiseBase {
 public:
  static void* operator new(size_t bytes) { return AllocateFrame(bytes); }
  static void operator delete(void* frame, size_t bytes) noexcept { FreeFrame(frame, bytes); }

  struct FinalAwaiter {
    bool await_ready() noexcept { return false; }
    template <class P>
    std::coroutine_handle<> await_suspend(std::coroutine_handle<P> self) noexcept {
      PromiseBase& promise = self.promise();
      promise.done_ = true;
      if (promise.starting_) return std::noop_coroutine();  // the starter sees done_ and goes on
      if (promise.on_done_ != nullptr) return promise.on_done_(promise.on_done_argument_);
      return promise.parent_ ? promise.parent_ : std::noop_coroutine();
    }
    void await_resume() noexcept {}
  };
  std::suspend_always initial_suspend() noexcept { return {}; }
  FinalAwaiter final_suspend() noexcept { return {}; }

  // Runs until the first suspension. True: it ended already, nobody will be told.
  bool Start(std::coroutine_handle<> self, std::coroutine_handle<> parent) {
    parent_ = parent;
    return Start(self);
  }
  // Instead of a parent; must not destroy the frame inline. Returns what runs next.
  using OnDone = std::coroutine_handle<> (*)(void* argument);
  bool Start(std::coroutine_handle<> self, OnDone on_done, void* argument) {
    on_done_ = on_done;
    on_done_argument_ = argument;
    return Start(self);
  }

 private:
  bool Start(std::coroutine_handle<> self) {
    starting_ = true;
    self.resume();
    starting_ = false;
    return done_;
  }
  std::coroutine_handle<> parent_;
  OnDone on_done_ = nullptr;
  void* on_done_argument_ = nullptr;
  bool starting_ = false;
  bool done_ = false;
};

template <class T>
class Promise : public PromiseBase {
 public:
  Task<T> get_return_object();
  template <class U>
  void return_value(U&& value) {
    result_.template emplace<1>(std::forward<U>(value));
  }
  void unhandled_exception() { result_.template emplace<2>(std::current_exception()); }
  T Take() {
    if (result_.index() == 2) std::rethrow_exception(std::get<2>(result_));
    return std::move(std::get<1>(result_));
  }

 private:
  std::variant<std::monostate, T, std::exception_ptr> result_;
};

template <>
class Promise<void> : public PromiseBase {
 public:
  Task<void> get_return_object();
  void return_void() {}
  void unhandled_exception() { error_ = std::current_exception(); }
  void Take() {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::exception_ptr error_;
};

template <class T>
struct ReadyValue {
  std::optional<T> value;
};
template <>
struct ReadyValue<void> {};

struct TaskAccess;

}  // namespace internal

template <class T>
class [[nodiscard("a Task does nothing until it is awaited")]] Task {
 public:
  using promise_type = internal::Promise<T>;
  using value_type = T;

  // A finished task: what a function that never suspends returns.
  template <class U>
  requires(!std::is_void_v<T> && std::is_convertible_v<U, T> &&
           !std::is_same_v<std::remove_cvref_t<U>, Task>)
      Task(
          U &&
          value) {  // NOLINT(google-explicit-constructor): so that `return absl::OkStatus();` works
    ready_.value.emplace(std::forward<U>(value));
  }

  Task(Task && other) noexcept
      : frame_(std::exchange(other.frame_, {})), ready_(std::move(other.ready_)) {}
  Task& operator=(Task&& other) noexcept {
    if (this != &other) {
      if (frame_) frame_.destroy();
      frame_ = std::exchange(other.frame_, {});
      ready_ = std::move(other.ready_);
    }
    return *this;
  }
  ~Task() {
    if (frame_) frame_.destroy();
  }

  struct Awaiter {
    Task& task;
    bool await_ready() const noexcept { return !task.frame_; }
    bool await_suspend(std::coroutine_handle<> parent) {
      return !task.frame_.promise().Start(task.frame_, parent);
    }
    T await_resume() { return task.TakeResult(); }
  };
  Awaiter operator co_await()&& noexcept { return Awaiter{*this}; }
  Awaiter operator co_await()& = delete;  // a Task is awaited once: co_await std::move(task)

 private:
  friend promise_type;
  friend internal::TaskAccess;
  explicit Task(std::coroutine_handle<promise_type> frame) : frame_(frame) {}
  T TakeResult() {
    if constexpr (!std::is_void_v<T>) {
      if (!frame_) return std::move(*ready_.value);
    }
    return frame_.promise().Take();
  }

  std::coroutine_handle<promise_type> frame_;
  [[no_unique_address]] internal::ReadyValue<T> ready_;
};

namespace internal {

template <class T>
Task<T> Promise<T>::get_return_object() {
  return Task<T>(std::coroutine_handle<Promise<T>>::from_promise(*this));
}
inline Task<void> Promise<void>::get_return_object() {
  return Task<void>(std::coroutine_handle<Promise<void>>::from_promise(*this));
}

// For the runtime: runs a task without a coroutine around it.
struct TaskAccess {
  // True: ended. False: `on_done(argument)` will be called, see PromiseBase.
  template <class T>
  static bool Start(Task<T>& task, PromiseBase::OnDone on_done, void* argument) {
    return !task.frame_ || task.frame_.promise().Start(task.frame_, on_done, argument);
  }
  template <class T>
  static T Take(Task<T>& task) {
    return task.TakeResult();
  }
};

// Runs on a reactor's own thread, soon; any thread may ask. `start(argument)` runs once.
void RunOnReactor(void (*start)(void*), void* argument);
// Blocks this thread, which drives that reactor meanwhile, until Finish(token). Aborts on a reactor
// thread.
class Waiter {
 public:
  Waiter();
  ~Waiter();
  Waiter(const Waiter&) = delete;
  void RunAndWait(void (*start)(void*), void* argument);
  void Finish();  // on the reactor

 private:
  void* state_;
};

template <class T>
struct RunState {
  explicit RunState(Task<T> t) : task(std::move(t)) {}
  Task<T> task;
  Waiter waiter;
  static std::coroutine_handle<> Done(void* self) {
    static_cast<RunState*>(self)->waiter.Finish();
    return std::noop_coroutine();
  }
  static void Begin(void* self) {
    auto* state = static_cast<RunState*>(self);
    if (TaskAccess::Start(state->task, &Done, self)) Done(self);
  }
};

struct SpawnState {
  explicit SpawnState(Task<void> t) : task(std::move(t)) {}
  Task<void> task;
};
void Spawn(SpawnState* state);

// Keeps a callable alive around the coroutine that it makes: its captures stay valid until the end.
template <class F>
auto KeepAndRun(F f) -> std::invoke_result_t<F&> {
  co_return co_await f();
}

template <class T>
struct IsTask : std::false_type {};
template <class T>
struct IsTask<Task<T>> : std::true_type {};

}  // namespace internal

// Runs a task to its end on a reactor and returns its result; rethrows what it threw. Blocks this
// thread. Any thread that is not a reactor's.
template <class T>
T Run(Task<T> task) {
  internal::RunState<T> state(std::move(task));
  state.waiter.RunAndWait(&internal::RunState<T>::Begin, &state);
  return internal::TaskAccess::Take(state.task);
}
// The same for a coroutine lambda, given uncalled.
template <class F>
requires internal::IsTask<std::invoke_result_t<F&>>::value auto Run(F f) {
  return Run(internal::KeepAndRun(std::move(f)));
}

// Starts a task that nobody waits for: on the current reactor, else on the process's first. An
// exception ends the process.
inline void Spawn(Task<void> task) { internal::Spawn(new internal::SpawnState(std::move(task))); }
template <class F>
requires std::is_same_v<std::invoke_result_t<F&>, Task<void>>
void Spawn(F f) { Spawn(internal::KeepAndRun(std::move(f))); }

}  // namespace verbena
