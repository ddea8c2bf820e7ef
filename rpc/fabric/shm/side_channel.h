#pragma once
// shm::SideChannel: one end of a link's unix socket, on which slabs go to the peer as sealed
// memfds. The owner sends an export before the first lease in it is announced; the reader takes
// what has come when it first meets a buffer. Also what the kernel says of the peer: its user, its
// process.
//
// All of it blocks at most for a mapping: setup thread only, one job at a time per link.
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/fabric/shm/segment.h"
#include "rpc/memory/device.h"
#include "rpc/memory/region.h"

namespace verbena::fabric::shm {

// Slabs that one peer may export on a link: each holds a mapping here.
inline constexpr uint32_t kExportsMax = 1024;

struct Import {
  uint64_t buffer = 0;
  memory::Mapping mapping;
};

class SideChannel {
 public:
  SideChannel() = default;
  ~SideChannel();
  SideChannel(const SideChannel&) = delete;
  SideChannel& operator=(const SideChannel&) = delete;

  // Takes the socket. PERMISSION_DENIED names the users when the peer's is another, or unknown.
  absl::Status Adopt(int& socket);
  int fd() const { return fd_; }
  // 0 when the peer lives in another PID namespace.
  int peer_pid() const { return peer_pid_; }
  // -1 when there is none.
  int peer_pidfd() const { return peer_pidfd_; }

  absl::Status SendExport(const memory::Region& region);
  // Takes every export that has come, maps it through `host` and appends it to `imports`.
  absl::Status TakeExports(memory::Device& host, std::vector<Import>& imports);

 private:
  absl::Status Send(const void* message, size_t bytes, int fd);

  int fd_ = -1;
  int peer_pid_ = 0;
  int peer_pidfd_ = -1;
  uint32_t taken_ = 0;
};

}  // namespace verbena::fabric::shm
