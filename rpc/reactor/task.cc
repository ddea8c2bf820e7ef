// Frames of coroutines, and the ends of Run() and Spawn().
#include "verbena/task.h"

#include <array>
#include <atomic>
#include <cstdlib>
#include <memory>
#include <new>

#include "rpc/base/check.h"
#include "rpc/reactor/reactors.h"

namespace verbena::internal {
namespace {

// Sizes of frames seen: 96 (never suspends) to 952 (a loop with options). Larger ones go to malloc.
constexpr std::array<size_t, 4> kFrameBytes = {128, 256, 512, 1024};
// Kept per size and thread; more are freed. Too low: malloc on the message path.
constexpr uint32_t kFramesKept = 1024;

struct FreeFrameNode {
  FreeFrameNode* next;
};

// Trivially destructible, so that frames can be freed while the thread's other objects die.
struct FrameCache {
  std::array<FreeFrameNode*, kFrameBytes.size()> free{};
  std::array<uint32_t, kFrameBytes.size()> count{};
  bool closed = false;
};
thread_local FrameCache cache;

struct CacheCloser {
  ~CacheCloser() {
    cache.closed = true;
    for (FreeFrameNode*& head : cache.free) {
      while (head != nullptr) std::free(std::exchange(head, head->next));
    }
  }
};

size_t SizeClass(size_t bytes) {
  for (size_t i = 0; i < kFrameBytes.size(); ++i) {
    if (bytes <= kFrameBytes[i]) return i;
  }
  return kFrameBytes.size();
}

}  // namespace

void* AllocateFrame(size_t bytes) {
  const size_t i = SizeClass(bytes);
  if (i < kFrameBytes.size() && cache.free[i] != nullptr) {
    FreeFrameNode* node = cache.free[i];
    cache.free[i] = node->next;
    --cache.count[i];
    return node;
  }
  void* frame = std::malloc(i < kFrameBytes.size() ? kFrameBytes[i] : bytes);
  if (frame == nullptr) throw std::bad_alloc();
  return frame;
}

void FreeFrame(void* frame, size_t bytes) noexcept {
  static thread_local CacheCloser closer;  // made at the first free of a thread
  (void)closer;
  const size_t i = SizeClass(bytes);
  if (i == kFrameBytes.size() || cache.closed || cache.count[i] >= kFramesKept) {
    std::free(frame);
    return;
  }
  auto* node = static_cast<FreeFrameNode*>(frame);
  node->next = cache.free[i];
  cache.free[i] = node;
  ++cache.count[i];
}

namespace {

struct StartWork : reactor::Work {
  StartWork(void (*s)(void*), void* a)
      : Work([](reactor::Work* work) {
          std::unique_ptr<StartWork> self(static_cast<StartWork*>(work));
          self->start(self->argument);
        }),
        start(s),
        argument(a) {}
  void (*start)(void*);
  void* argument;
};

// The seat is held until the work that calls Finish has returned: only then may the waiting thread
// go on and destroy the coroutine's frame.
struct WaiterState {
  std::atomic<uint32_t> done{0};
  reactor::Reactor* reactor = &reactor::DefaultReactor();
  struct FinishWork : reactor::Work {
    explicit FinishWork(WaiterState* s)
        : Work([](reactor::Work* work) {
            WaiterState* waiter = static_cast<FinishWork*>(work)->state;
            reactor::Reactor* home = waiter->reactor;
            waiter->done.store(1);
            home->Wake(waiter->done);
          }),
          state(s) {}
    WaiterState* state;
  } finish{this};
};

}  // namespace

void RunOnReactor(void (*start)(void*), void* argument) {
  reactor::Reactor* here = reactor::Reactor::Current();
  (here != nullptr ? *here : reactor::DefaultReactor()).Post(*new StartWork(start, argument));
}

Waiter::Waiter() : state_(new WaiterState) {}
Waiter::~Waiter() { delete static_cast<WaiterState*>(state_); }

void Waiter::RunAndWait(void (*start)(void*), void* argument) {
  VERBENA_CHECK(
      reactor::Reactor::Current() == nullptr,
      "Run() on a reactor thread would block every call on it: co_await the task instead");
  auto* state = static_cast<WaiterState*>(state_);
  state->reactor->Post(*new StartWork(start, argument));
  state->reactor->WaitUntil(state->done);
}

void Waiter::Finish() {
  auto* state = static_cast<WaiterState*>(state_);
  state->reactor->RunSoon(state->finish);
}

void Spawn(SpawnState* state) {
  RunOnReactor(
      [](void* argument) {
        auto* spawned = static_cast<SpawnState*>(argument);
        struct Ended {
          // Deletes later, never from inside the frame's own final suspension.
          static std::coroutine_handle<> Done(void* a) {
            RunOnReactor(&Delete, a);
            return std::noop_coroutine();
          }
          static void Delete(void* a) {
            std::unique_ptr<SpawnState> owned(static_cast<SpawnState*>(a));
            TaskAccess::Take(owned->task);
          }
        };
        if (TaskAccess::Start(spawned->task, &Ended::Done, spawned)) Ended::Delete(spawned);
      },
      state);
}

}  // namespace verbena::internal
