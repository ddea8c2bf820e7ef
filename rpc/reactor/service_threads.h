#pragma once
// The process's threads for what no reactor may do. Each is started at its first use and sleeps
// when it has nothing to do.
//  - setup: everything slow (create, modify, destroy queue pairs; register; map; export and import;
//  short allocations),
//    one at a time in order. What ends a link may have to wait for it, so none of its jobs takes
//    long.
//  - memory: growth of the pools, which takes a second per GiB. It may wait for the setup thread,
//    never the other way round.
//  - copies: between memory of this process's own that a device has to move, and what they wait
//  for.
//  - resolver: host names to addresses, which may take seconds.
//  - disposal: destructors of user memory.
//  - watch: an epoll loop for listening sockets, handshakes, death of peers. Its work never blocks.
#include <cstdint>

#include "absl/functional/any_invocable.h"
#include "absl/time/time.h"

namespace verbena::reactor {

using Job = absl::AnyInvocable<void() &&>;

// Any thread; allocates; never blocks.
void PostSetup(Job job);
void PostDisposal(Job job);
void PostResolve(Job job);
void PostCopies(Job job);
bool OnSetupThread();
void PostGrowth(Job job);
bool OnGrowthThread();

// The watch thread. Descriptors are the caller's; RemoveFd before closing one.
class Watch {
 public:
  static Watch& Get();
  void Post(Job job);                             // any thread
  void PostAfter(absl::Duration delay, Job job);  // any thread
  // `events` are EPOLLIN, EPOLLOUT, ...; the callback runs on the watch thread until RemoveFd. Any
  // thread.
  void AddFd(int fd, uint32_t events, absl::AnyInvocable<void(uint32_t events)> callback);
  void ModifyFd(int fd, uint32_t events);  // nothing when it is not watched (any more)
  // After it returns the callback does not run any more (waits for a running one unless called from
  // it). Any thread.
  void RemoveFd(int fd);
  bool OnWatchThread() const;
};

}  // namespace verbena::reactor
