#pragma once
// fork(): threads, reactors and links do not exist in the child, so the library is dead there; exec
// is fine. What this library is asked to do in such a child fails with FAILED_PRECONDITION or,
// where there is no Status, ends the child with a message. A child must also not hold its parent's
// connections open: peers learn of a death by the end of the socket.
#include <atomic>

#include "absl/status/status.h"

namespace verbena {

namespace internal {
extern constinit std::atomic<bool> forked;
}

// Any thread. Whether this process is a child forked after WatchForFork() in its parent.
inline bool Forked() { return internal::forked.load(std::memory_order_relaxed); }
// Any thread. From now on Forked() is true in children.
void WatchForFork();

// FAILED_PRECONDITION that says what to do instead.
absl::Status ForkedError();

// Any thread. The child of a fork closes `fd` at once, if it still names the file that it names
// now: whoever closes it here need not say so, and a number that was used again is left alone.
void CloseInForkChild(int fd);
// Any thread. The child keeps it after all.
void ForgetForkChild(int fd);

}  // namespace verbena
