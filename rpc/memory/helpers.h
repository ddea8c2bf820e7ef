#pragma once
// The process's helper threads, as memory/ sees them. Slow work (mapping, registering) belongs on
// the setup thread, growth of pools, which is slower still, on the growth thread, and users'
// destructors on the disposal thread, but these threads live in
// reactor/, which is right of this room: process start-up plugs them in. Until then, and in tests
// of this room, everything runs inline.
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"

namespace verbena::memory {

using Job = absl::AnyInvocable<void() &&>;

struct HelperThreads {
  bool (*on_reactor)() = nullptr;        // whether this thread is in some reactor's seat
  void (*post_disposal)(Job) = nullptr;  // never blocks
  bool (*on_setup)() = nullptr;
  void (*post_setup)(Job) = nullptr;  // never blocks
  bool (*on_growth)() = nullptr;
  void (*post_growth)(Job) = nullptr;  // never blocks
};

// Any thread; each pair whole or not at all.
void SetHelperThreads(const HelperThreads& threads);

// Runs a user's release callback: here, or on the disposal thread when this is a reactor's. Any
// thread.
void Dispose(Job job);
// Runs `work` on the setup thread and waits for it; inline when this is that thread or there is
// none. Any thread; a setup job must therefore never wait for a reactor.
void RunOnSetup(absl::FunctionRef<void()> work);
// The same on the growth thread; inline on the setup thread too, which must not wait for it.
void RunOnGrowth(absl::FunctionRef<void()> work);
// Whether this thread is in some reactor's seat, and therefore must not wait.
bool OnReactor();
bool OnSetup();
// Leaves `job` to the setup thread; inline when there is none. Any thread.
void PostToSetup(Job job);
// The same for the growth thread.
void PostToGrowth(Job job);

}  // namespace verbena::memory
