// Which co_await expressions this compiler gets right. g++ 12 destroys some temporaries of a full
// expression that suspends twice, or a bitwise copy of them. The library and its users write only
// the shapes proved here; the others are run too, and what the compiler did with them is printed,
// so that a fixed compiler shows.
#include <coroutine>
#include <cstddef>
#include <exception>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <utility>

#include "tests/catch.h"

namespace {

// Where a Tracked lives now. One that is destroyed at an address where none was constructed is the
// miscompilation.
std::set<const void*> alive;
int strangers_destroyed = 0;

// It owns nothing, so that a wrong destructor call is counted and does not crash the test.
struct Tracked {
  Tracked() { alive.insert(this); }
  Tracked(const Tracked&) { alive.insert(this); }
  Tracked(Tracked&&) noexcept { alive.insert(this); }
  Tracked& operator=(const Tracked&) = default;
  Tracked& operator=(Tracked&&) noexcept = default;
  ~Tracked() { strangers_destroyed += alive.erase(this) == 0 ? 1 : 0; }
};

struct Coroutine {
  struct promise_type {
    Coroutine get_return_object() {
      return {std::coroutine_handle<promise_type>::from_promise(*this)};
    }
    std::suspend_never initial_suspend() noexcept { return {}; }
    std::suspend_always final_suspend() noexcept { return {}; }
    void return_void() {}
    void unhandled_exception() { std::terminate(); }
  };
  std::coroutine_handle<promise_type> handle;
};

std::coroutine_handle<> suspended;

template <class T>
struct Suspend {
  bool await_ready() { return false; }
  void await_suspend(std::coroutine_handle<> handle) { suspended = handle; }
  T await_resume() { return T(); }
};

struct Aggregate {
  int timeout_ms = 1;
  Tracked tracked = {};
};
struct TrivialAggregate {
  int timeout_ms = 1;
  int priority = 0;
};
class Options {
 public:
  Options() {}
  Options& set_timeout_ms(int timeout_ms) & {
    timeout_ms_ = timeout_ms;
    return *this;
  }
  Options set_timeout_ms(int timeout_ms) && {
    timeout_ms_ = timeout_ms;
    return std::move(*this);
  }

 private:
  int timeout_ms_ = 0;
  Tracked tracked_;
};
struct Functor {
  explicit Functor(const Tracked& t) : tracked(t) {}
  void operator()() const {}
  Tracked tracked;
};

Suspend<int> ByValue(Aggregate) { return {}; }
Suspend<int> ByReference(const Aggregate&) { return {}; }
Suspend<int> Trivial(TrivialAggregate) { return {}; }
Suspend<int> OptionsByValue(Options) { return {}; }
Suspend<int> OptionsByReference(const Options&) { return {}; }
Suspend<int> Callback(std::function<void()>) { return {}; }
Suspend<int> Owner(std::unique_ptr<Tracked>) { return {}; }
Suspend<int> Text(std::string) { return {}; }
Suspend<Tracked> Value() { return {}; }
Suspend<std::unique_ptr<Tracked>> Pointer() { return {}; }
template <class F>
Suspend<int> Generic(F) {
  return {};
}
Aggregate MakeAggregate() { return {}; }
void Use(const Aggregate&) {}
void Use(const Tracked&) {}

struct Shape {
  const char* name;
  Coroutine (*run)();
};

// A captureless lambda coroutine has no frame to dangle.
const Shape kSafe[] = {
    {"an aggregate of trivial members, braced in place",
     []() -> Coroutine { co_await Trivial({.timeout_ms = 5}); }},
    {"a class with a constructor and chained setters, by value",
     []() -> Coroutine { co_await OptionsByValue(Options().set_timeout_ms(5)); }},
    {"the same by reference",
     []() -> Coroutine { co_await OptionsByReference(Options().set_timeout_ms(5)); }},
    {"an aggregate named first, copied",
     []() -> Coroutine {
       Aggregate a{.timeout_ms = 5};
       co_await ByValue(a);
     }},
    {"an aggregate named first, moved",
     []() -> Coroutine {
       Aggregate a{.timeout_ms = 5};
       co_await ByValue(std::move(a));
     }},
    {"an aggregate returned by a function",
     []() -> Coroutine { co_await ByValue(MakeAggregate()); }},
    {"an awaitable named first",
     []() -> Coroutine {
       auto awaitable = ByValue(Aggregate{.timeout_ms = 5});
       co_await awaitable;
     }},
    {"a capturing lambda named first, moved",
     []() -> Coroutine {
       Tracked t;
       auto callback = [t] { (void)t; };
       co_await Callback(std::move(callback));
     }},
    {"a lambda with a trivial capture, in place",
     []() -> Coroutine {
       int value = 0;
       int* pointer = &value;
       co_await Generic([pointer] { (void)pointer; });
     }},
    {"a function object with a constructor, in place",
     []() -> Coroutine {
       Tracked t;
       co_await Generic(Functor(t));
     }},
    {"make_unique in place", []() -> Coroutine { co_await Owner(std::make_unique<Tracked>()); }},
    {"a string from a literal",
     []() -> Coroutine { co_await Text("long enough to lie on the heap, not in the object"); }},
    {"a result taken into a variable",
     []() -> Coroutine {
       Tracked result = co_await Value();
       Use(result);
     }},
    {"a result named first, then put into an aggregate",
     []() -> Coroutine {
       std::unique_ptr<Tracked> result = co_await Pointer();
       Aggregate a{1, result ? *result : Tracked()};
       Use(a);
     }},
};

const Shape kUnsafe[] = {
    {"an aggregate with a non-trivial member in place, by value",
     []() -> Coroutine { co_await ByValue(Aggregate{.timeout_ms = 5}); }},
    {"the same by reference",
     []() -> Coroutine { co_await ByReference(Aggregate{.timeout_ms = 5}); }},
    {"a capturing lambda in place",
     []() -> Coroutine {
       Tracked t;
       co_await Callback([t] { (void)t; });
     }},
    {"condition ? co_await a : b",
     []() -> Coroutine {
       Tracked other;
       Tracked result = alive.empty() ? other : co_await Value();
       Use(result);
     }},
    {"an aggregate around a co_await",
     []() -> Coroutine {
       Aggregate a{1, co_await Value()};
       Use(a);
     }},
};

struct Balance {
  std::size_t leaked;
  int strangers;
};

Balance RunShape(const Shape& shape) {
  alive.clear();
  strangers_destroyed = 0;
  Coroutine coroutine = shape.run();
  REQUIRE_FALSE(coroutine.handle.done());
  suspended.resume();
  REQUIRE(coroutine.handle.done());
  coroutine.handle.destroy();
  return {alive.size(), strangers_destroyed};
}

TEST_CASE("the shapes of co_await that we write destroy every temporary exactly once",
          "[coroutine]") {
  for (const Shape& shape : kSafe) {
    INFO(shape.name);
    Balance balance = RunShape(shape);
    CHECK(balance.leaked == 0);
    CHECK(balance.strangers == 0);
  }
}

TEST_CASE("the shapes of co_await that we avoid are reported", "[coroutine]") {
  for (const Shape& shape : kUnsafe) {
    Balance balance = RunShape(shape);
    bool right = balance.leaked == 0 && balance.strangers == 0;
    WARN(shape.name << ": " << (right ? "right" : "WRONG") << " with this compiler (leaked "
                    << balance.leaked << ", destroyed where none was " << balance.strangers << ")");
  }
}

}  // namespace
