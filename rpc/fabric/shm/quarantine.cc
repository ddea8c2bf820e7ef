#include "rpc/fabric/shm/quarantine.h"

#include <poll.h>

#include <mutex>
#include <utility>

#include "rpc/fabric/shm/link.h"

namespace verbena::fabric::shm {
namespace {

// Whether the process is dead, or has ended its side of the link, for which it waits for its
// streams. (A pidfd of -1 is ignored.)
bool PeerIsGone(const Link& link) {
  pollfd ends[] = {{link.channel->fd(), POLLRDHUP, 0}, {link.channel->peer_pidfd(), POLLIN, 0}};
  return ::poll(ends, 2, 0) > 0 &&
         ((ends[0].revents & (POLLRDHUP | POLLHUP | POLLERR)) != 0 || ends[1].revents != 0);
}

}  // namespace

Quarantine::~Quarantine() {
  Look([](std::unique_ptr<Link>) {});
  if (ended_.empty()) return;
  static std::mutex mutex;
  static auto* const kept = new std::vector<Ended>;
  const std::lock_guard lock(mutex);
  for (Ended& ended : ended_) kept->push_back(std::move(ended));
}

void Quarantine::Add(std::unique_ptr<Link> link, std::vector<HeldLease> held) {
  ended_.push_back({std::move(link), std::move(held)});
}

void Quarantine::Look(absl::FunctionRef<void(std::unique_ptr<Link> link)> gone) {
  std::erase_if(ended_, [&](Ended& ended) {
    if (PeerIsGone(*ended.link)) ended.held.clear();
    const Hold* const holds = ended.link->theirs.desk().holds;
    std::erase_if(ended.held, [holds](const HeldLease& lease) {
      return !IsHeld(holds, lease.entry, lease.word);
    });
    if (!ended.held.empty()) return false;
    gone(std::move(ended.link));
    return true;
  });
}

}  // namespace verbena::fabric::shm
