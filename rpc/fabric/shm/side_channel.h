#pragma once
// shm::SideChannel: one end of a link's unix socket, on which slabs go to the peer as sealed
// memfds. The owner sends an export before the first lease in it is announced, and a withdrawal
// when it unmaps the slab, whose number is never used again; the reader maps a slab when a READ
// first needs it. Also what the kernel says of the peer: its user, its
// process.
//
// All of it blocks at most for a mapping: setup thread only, one job at a time per link.
#include <cstdint>
#include <map>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/fabric/shm/imports.h"
#include "rpc/fabric/shm/segment.h"
#include "rpc/memory/device.h"
#include "rpc/memory/region.h"

namespace verbena::fabric::shm {

// Slabs that one peer may export on a link: each holds a mapping here.
inline constexpr uint32_t kExportsMax = 1024;

struct Import {
  uint64_t buffer = 0;
  ImportRef memory;
};
// A buffer that a READ needs, and whether so much of it that faulting it in is worth it.
struct Want {
  uint64_t buffer = 0;
  ImportRef mapped;  // null: not yet
  bool populate = false;
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
  absl::Status SendWithdrawal(uint64_t buffer);
  // Takes what has come: exports are kept as descriptors, buffers that were withdrawn are appended
  // to `withdrawn`. Then maps what of `wants` is known, through `host`, and appends it to
  // `imports`.
  absl::Status Take(memory::Device& host, absl::Span<const Want> wants,
                    std::vector<Import>& imports, std::vector<uint64_t>& withdrawn);

 private:
  struct Announced {
    memory::Device* device = nullptr;
    memory::Export what;  // with its descriptor
  };
  absl::Status Send(const void* message, size_t bytes, int fd);
  absl::Status TakeMessages(memory::Device& host, std::vector<uint64_t>& withdrawn);
  absl::Status Announce(const memory::Export& what, memory::Device* device);
  void Forget(uint64_t buffer);

  int fd_ = -1;
  int peer_pid_ = 0;
  int peer_pidfd_ = -1;
  uint32_t exports_ = 0;                     // taken and not withdrawn
  std::map<uint64_t, Announced> announced_;  // not mapped yet, by buffer
};

}  // namespace verbena::fabric::shm
