#pragma once
// fork(): threads, reactors and links do not exist in the child, so the library is dead there; exec
// is fine. What this library is asked to do in such a child fails with FAILED_PRECONDITION or,
// where there is no Status, ends the child with a message. A child must also not hold its parent's
// connections open: peers learn of a death by the end of the socket.
namespace verbena {

// Any thread. Whether this process is a child forked after WatchForFork() in its parent.
bool Forked();
// Any thread. From now on Forked() is true in children.
void WatchForFork();

// Any thread. The child of a fork closes `fd` at once. Forget before closing it here.
void CloseInForkChild(int fd);
void ForgetForkChild(int fd);

}  // namespace verbena
