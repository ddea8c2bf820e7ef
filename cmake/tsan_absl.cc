// Tells ThreadSanitizer what Debian's abseil synchronises. That library is not instrumented, so
// without this nothing that an absl::Mutex guards looks guarded. Linked into every executable of
// the tsan preset: each function here takes the place of the library's, calls it, and says what it
// ordered.
#include <dlfcn.h>
#include <sanitizer/tsan_interface.h>

#include <cstdio>
#include <cstdlib>
#include <string>

#include "absl/base/options.h"
#include "absl/synchronization/blocking_counter.h"
#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"

extern "C" {
void AnnotateIgnoreReadsBegin(const char* file, int line);
void AnnotateIgnoreReadsEnd(const char* file, int line);
}

namespace {

#define VERBENA_TEXT_OF(x) #x
#define VERBENA_TEXT(x) VERBENA_TEXT_OF(x)

// The library's function of that mangled name, which lies in abseil's inline namespace; `qualifier`
// is K for const ones.
template <class Function>
Function Next(const char* mangled, const std::string& qualifier = "") {
  const std::string inner = VERBENA_TEXT(ABSL_OPTION_INLINE_NAMESPACE_NAME);
  const std::string name =
      "_ZN" + qualifier + "4absl" + std::to_string(inner.size()) + inner + mangled;
  void* found = dlsym(RTLD_NEXT, name.c_str());
  if (found == nullptr) {
    std::fprintf(stderr, "tsan_absl: abseil has no %s\n", name.c_str());
    std::abort();
  }
  return reinterpret_cast<Function>(found);
}

}  // namespace

namespace absl {
ABSL_NAMESPACE_BEGIN

// Before a call that lets go of `object`, and after one that takes it.
#define VERBENA_GIVES(object) __tsan_release(const_cast<void*>(static_cast<const void*>(object)))
#define VERBENA_TAKES(object) __tsan_acquire(const_cast<void*>(static_cast<const void*>(object)))

void Mutex::Lock() {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex4LockEv");
  next(this);
  VERBENA_TAKES(this);
}
bool Mutex::TryLock() {
  static const auto next = Next<bool (*)(Mutex*)>("5Mutex7TryLockEv");
  bool locked = next(this);
  if (locked) VERBENA_TAKES(this);
  return locked;
}
void Mutex::Unlock() {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex6UnlockEv");
  VERBENA_GIVES(this);
  next(this);
}
void Mutex::ReaderLock() {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex10ReaderLockEv");
  next(this);
  VERBENA_TAKES(this);
}
void Mutex::ReaderUnlock() {
  static const auto next = Next<void (*)(Mutex*)>("5Mutex12ReaderUnlockEv");
  VERBENA_GIVES(this);
  next(this);
}
void Mutex::LockWhen(const Condition& condition) {
  static const auto next =
      Next<void (*)(Mutex*, const Condition&)>("5Mutex8LockWhenERKNS0_9ConditionE");
  next(this, condition);
  VERBENA_TAKES(this);
}
bool Mutex::LockWhenWithTimeout(const Condition& condition, Duration timeout) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex19LockWhenWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  bool held = next(this, condition, timeout);
  VERBENA_TAKES(this);
  return held;
}
bool Mutex::LockWhenWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex20LockWhenWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  bool held = next(this, condition, deadline);
  VERBENA_TAKES(this);
  return held;
}
void Mutex::Await(const Condition& condition) {
  static const auto next =
      Next<void (*)(Mutex*, const Condition&)>("5Mutex5AwaitERKNS0_9ConditionE");
  VERBENA_GIVES(this);
  next(this, condition);
  VERBENA_TAKES(this);
}
bool Mutex::AwaitWithTimeout(const Condition& condition, Duration timeout) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Duration)>(
      "5Mutex16AwaitWithTimeoutERKNS0_9ConditionENS0_8DurationE");
  VERBENA_GIVES(this);
  bool held = next(this, condition, timeout);
  VERBENA_TAKES(this);
  return held;
}
bool Mutex::AwaitWithDeadline(const Condition& condition, Time deadline) {
  static const auto next = Next<bool (*)(Mutex*, const Condition&, Time)>(
      "5Mutex17AwaitWithDeadlineERKNS0_9ConditionENS0_4TimeE");
  VERBENA_GIVES(this);
  bool held = next(this, condition, deadline);
  VERBENA_TAKES(this);
  return held;
}

// A waiter's condition is tried inside the library, by whoever holds the mutex.
bool Condition::Eval() const {
  static const auto next = Next<bool (*)(const Condition*)>("9Condition4EvalEv", "K");
  AnnotateIgnoreReadsBegin(__FILE__, __LINE__);
  bool holds = next(this);
  AnnotateIgnoreReadsEnd(__FILE__, __LINE__);
  return holds;
}

void CondVar::Wait(Mutex* mutex) {
  static const auto next = Next<void (*)(CondVar*, Mutex*)>("7CondVar4WaitEPNS0_5MutexE");
  VERBENA_GIVES(mutex);
  next(this, mutex);
  VERBENA_TAKES(mutex);
}
bool CondVar::WaitWithTimeout(Mutex* mutex, Duration timeout) {
  static const auto next = Next<bool (*)(CondVar*, Mutex*, Duration)>(
      "7CondVar15WaitWithTimeoutEPNS0_5MutexENS0_8DurationE");
  VERBENA_GIVES(mutex);
  bool late = next(this, mutex, timeout);
  VERBENA_TAKES(mutex);
  return late;
}
bool CondVar::WaitWithDeadline(Mutex* mutex, Time deadline) {
  static const auto next =
      Next<bool (*)(CondVar*, Mutex*, Time)>("7CondVar16WaitWithDeadlineEPNS0_5MutexENS0_4TimeE");
  VERBENA_GIVES(mutex);
  bool late = next(this, mutex, deadline);
  VERBENA_TAKES(mutex);
  return late;
}

void Notification::Notify() {
  static const auto next = Next<void (*)(Notification*)>("12Notification6NotifyEv");
  VERBENA_GIVES(this);
  VERBENA_GIVES(&notified_yet_);  // HasBeenNotified() reads it, in the header
  next(this);
}
void Notification::WaitForNotification() const {
  static const auto next =
      Next<void (*)(const Notification*)>("12Notification19WaitForNotificationEv", "K");
  next(this);
  VERBENA_TAKES(this);
}
bool Notification::WaitForNotificationWithTimeout(Duration timeout) const {
  static const auto next = Next<bool (*)(const Notification*, Duration)>(
      "12Notification30WaitForNotificationWithTimeoutENS0_8DurationE", "K");
  bool notified = next(this, timeout);
  if (notified) VERBENA_TAKES(this);
  return notified;
}

bool Notification::WaitForNotificationWithDeadline(Time deadline) const {
  static const auto next = Next<bool (*)(const Notification*, Time)>(
      "12Notification31WaitForNotificationWithDeadlineENS0_4TimeE", "K");
  bool notified = next(this, deadline);
  if (notified) VERBENA_TAKES(this);
  return notified;
}

bool BlockingCounter::DecrementCount() {
  static const auto next = Next<bool (*)(BlockingCounter*)>("15BlockingCounter14DecrementCountEv");
  VERBENA_GIVES(this);
  return next(this);
}
void BlockingCounter::Wait() {
  static const auto next = Next<void (*)(BlockingCounter*)>("15BlockingCounter4WaitEv");
  next(this);
  VERBENA_TAKES(this);
}

ABSL_NAMESPACE_END
}  // namespace absl
