#pragma once
// The bell: an eventfd of a fabric, which its peers ring to wake its reactor. They all share one
// open file description with it, so any of them can clear O_NONBLOCK, take the count or fill it up:
// nothing here relies on either, and neither call blocks.
//
// RingBell looks before it writes, since the kernel has no other way to write to an eventfd without
// blocking. So a peer could still catch it, if it cleared the flag and filled its bell up within
// that microsecond. That is no accident any more but a process of the same user on the attack, and
// such a one can as well stop this process.
namespace verbena::fabric::shm {

// Any thread.
void RingBell(int bell);
// Whether somebody rang since the last call. Any thread.
bool TakeRings(int bell);

}  // namespace verbena::fabric::shm
