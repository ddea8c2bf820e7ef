#pragma once
// shm::Link: one end of a link over shared memory: two segments, a bell, a side channel, leases and
// what the peer exported. Set-up happens on the setup thread; from Start on, all but `channel` is
// the reactor's.
#include <array>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/shm/exports.h"
#include "rpc/fabric/shm/lease_table.h"
#include "rpc/fabric/shm/offer.h"
#include "rpc/fabric/shm/quarantine.h"
#include "rpc/fabric/shm/ring.h"
#include "rpc/fabric/shm/segment.h"
#include "rpc/fabric/shm/side_channel.h"
#include "rpc/fabric/shm/stage_server.h"

namespace verbena::fabric::shm {

// A lease that waits until its slab's descriptor has gone to the peer.
struct PendingLease {
  LeaseSlot slot;
  memory::RegionRef region;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

// A stage of the peer's that READs of this side asked for.
struct AskedStage {
  // kAnswered: filled, and not begun to be emptied. kAbandoned: its READ has ended, and its answer
  // has not come.
  enum class State : uint8_t { kFree, kAsked, kAnswered, kCopying, kAbandoned };
  State state = State::kFree;
  uint32_t transfer = 0;
  uint64_t sequence = 0;
  uint64_t offset = 0;  // within the READ
  size_t bytes = 0;
  uint32_t copies = 0;  // out of it, under way
};

struct Link {
  explicit Link(LinkId i) : id(i) {}
  ~Link();
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  // Setup thread. `bell_fd`: this side's eventfd, which goes to the peer as a duplicate.
  absl::StatusOr<Offer> Prepare(int bell_fd);
  // Takes peer.fds whatever comes of it; takes the side socket on success.
  absl::Status Complete(Offer& peer, Sockets& sockets);

  const LinkId id;
  uint64_t serial = 0;  // never used again in its fabric
  Segment mine, theirs;
  RingWriter out;
  RingReader in;
  LeaseOwner leases;
  std::shared_ptr<SideChannel> channel;  // shared with jobs on the setup thread
  int peer_bell = -1;
  std::string read_ways;
  bool process_way = false;  // process_vm_readv was proved

  bool hot = false;      // polled every tick; else the peer rings
  bool active = false;   // had traffic since it was last looked at
  bool hung_up = false;  // end of file on the side socket
  bool closing = false;  // LinkDown follows once nothing of it is in use
  bool down_queued = false;
  bool forced = false;          // it did not wait any longer for streams of the peer's
  int64_t closing_ns = 0;       // since when it closes
  std::vector<HeldLease> held;  // revoked by force, while such a stream still read it
  absl::Status cause;

  Exports exports;               // what the peer has of this side
  std::vector<uint64_t> staged;  // buffers that it cannot be given
  bool said_unexported = false;  // that some is leased without, for want of room
  bool lends = false;            // device memory was leased to the peer
  std::unique_ptr<ServedStages> served;
  std::array<AskedStage, kStages> stages;
  uint64_t stage_sequence = 0;
  bool said_kept = false;          // that its peer's streams keep memory that was revoked
  std::vector<Unmapped> unmapped;  // what was found out so far
  std::vector<PendingLease> pending_leases;
  std::vector<Import> imports;
  bool importing = false;     // a job takes what came on the side channel
  std::vector<Want> wants;    // what the next job shall map
  bool side_news = false;     // something has come on the side channel
  uint32_t import_round = 0;  // of the job that runs or ran last
  uint32_t copies = 0;        // READs whose copy has begun

 private:
  absl::Status ProveMapping(const OfferBlob& offer) const;
  absl::Status ProveProcess(const OfferBlob& offer) const;

  std::unique_ptr<Nonce> nonce_;  // at the address that the offer names
};

}  // namespace verbena::fabric::shm
