#pragma once
// shm::SideChannel: one end of a link's unix socket, on which slabs go to the peer as sealed
// memfds, and memory of GPUs as descriptors or handles of their driver's. The owner sends an export
// before the first lease in it is announced, and a withdrawal when it unmaps the slab, or makes
// room for others, after which it may export the same again; the reader maps it when a READ first
// needs it, a GPU's memory once for each device of its own that copies from it. Also what the
// kernel says of the peer: its user, its process.
//
// All of it blocks at most for a mapping, however much the peer sends: setup thread only, one job
// at a time per link.
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

// What one peer may export on a link, and so what this side exports at most: each holds a mapping
// at its reader, and a GPU's a descriptor.
inline constexpr uint32_t kExportsMax = 1024;
// Messages that one job takes; the next job of its link waits behind those of the others. Fewer,
// and a burst of new slabs costs more jobs; more, and a peer that sends without end keeps the setup
// thread for longer: 64 are about 0.1 ms.
inline constexpr int kMessagesPerTake = 64;

struct Import {
  uint64_t buffer = 0;
  memory::Device* into = nullptr;  // what it was mapped to be copied to
  ImportRef memory;
};
// A buffer that a READ into memory of `into` needs, and which range of it to fault in.
struct Want {
  uint64_t buffer = 0;
  memory::Device* into = nullptr;
  ImportRef mapped;  // null: not yet
  uint64_t offset = 0;
  uint64_t bytes = 0;  // 0: none, it is not worth it
};
// A peer's memory that cannot be mapped here to be copied to memory of `into`.
struct Unmapped {
  uint64_t buffer = 0;
  memory::Device* into = nullptr;
  bool of_host = false;  // no stages bring that
  friend bool operator==(const Unmapped&, const Unmapped&) = default;
};
// What a job found.
struct Taken {
  std::vector<Import> imports;
  std::vector<uint64_t> withdrawn;  // of those that were mapped, or had no descriptor
  std::vector<Unmapped> unmapped;   // of what was wanted
  bool more = false;                // there may be more messages
  absl::Status not_mapped;          // why something wanted is not among `imports`
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

  // UNAVAILABLE: the peer is gone; RESOURCE_EXHAUSTED: it takes nothing more now.
  absl::Status SendExport(const memory::Region& region);
  // At once, or where the peer takes nothing more now, before the next export.
  void Withdraw(uint64_t buffer);
  // Takes at most kMessagesPerTake of what has come: exports are kept as descriptors. One of a
  // device for which half of the process's descriptors would not do, and any for which none is
  // left, is never mapped, which is logged once. Then maps
  // what of `wants` is known, through `host`. UNAVAILABLE: the peer has closed its end;
  // RESOURCE_EXHAUSTED, INVALID_ARGUMENT: it said what no peer may say.
  absl::Status Take(memory::Device& host, absl::Span<const Want> wants, Taken& taken);

 private:
  struct Exported {
    Device::Kind kind = Device::Kind::kHost;
    memory::Export what;  // of host memory the descriptor is -1 once it was mapped
    bool mapped = false;
    bool lost = false;  // there was no descriptor left for it
  };
  absl::Status SendWithdrawals();
  absl::Status Send(const void* message, size_t bytes, int fd);
  absl::Status TakeMessages(Taken& taken);
  absl::Status TakeOne(Taken& taken);
  absl::Status Announce(const memory::Export& what, Device::Kind kind, bool lost);
  void SayNoDescriptor();
  absl::Status Forget(uint64_t buffer, Taken& taken);
  // Null: it is not mapped, or not any more; `why` says more where that helps.
  ImportRef Map(const Want& want, memory::Device& host, absl::Status& why);

  int fd_ = -1;
  int peer_pid_ = 0;
  int peer_pidfd_ = -1;
  bool said_no_descriptor_ = false;
  std::map<uint64_t, Exported> exports_;  // the peer's that are not withdrawn, by buffer
  std::vector<uint64_t> withdrawals_;     // of this side's, not sent
};

}  // namespace verbena::fabric::shm
