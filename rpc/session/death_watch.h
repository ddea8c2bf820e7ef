#pragma once
// Watches what shows that a peer's process lives: the socket on which HELLO was exchanged (end of
// file; where its machine is gone, no answer for 11 s) and its pidfd (readable). Owns both
// descriptors.
#include <cstdint>
#include <memory>

#include "rpc/base/ids.h"
#include "rpc/reactor/work.h"
#include "rpc/session/payload_set.h"

namespace verbena::session {

class DeathWatch {
 public:
  // Descriptors of -1 are not watched. The link is told once, in the seat: LinkImpl::OnPeerDead.
  DeathWatch(std::shared_ptr<EngineGate> gate, LinkId link, uint64_t serial, int stream_fd,
             int pidfd);
  ~DeathWatch();
  DeathWatch(const DeathWatch&) = delete;
  DeathWatch& operator=(const DeathWatch&) = delete;

 private:
  struct DeathWork;
  void OnStream();
  void OnPid();
  void Fire(const char* why);

  std::shared_ptr<EngineGate> gate_;
  const int stream_fd_;
  const int pidfd_;
  absl::Mutex mutex_;
  std::unique_ptr<DeathWork> work_ ABSL_GUARDED_BY(mutex_);  // null: fired
};

}  // namespace verbena::session
