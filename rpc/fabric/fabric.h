#pragma once
// fabric::Fabric: what a transport does for a session, and no more. One object per transport and
// reactor. Above this file no code knows which fabric it is on.
//
// A link has a control lane (ordered frames within credits) and bulk lanes (READs, one direction
// each). Frames name nothing; leases and READs are named by slots that the session chose and the
// fabric echoes.
//
// Rules for implementations
//  - No method except those marked [S] blocks, and none calls the sink back inline: events come out
//    of Poll() only.
//  - Every Read gives exactly one OnReadDone; its destination is untouched afterwards. Every Lease
//    gives exactly one OnLeased, every Revoke exactly one OnRevoked: from then on no byte of it is
//    deliverable.
//  - BreakLane and Close answer for all READs of the lane (but those that stand in streams) or link
//    first. With OnLaneDown its keys are void; its leases are still the session's to end, which
//    costs the successor nothing. OnLinkDown is the last event of a link: its leases have ended.
//  - A fabric need not see that a peer's process died: the session does, by the stream's end, and
//    calls Close.
//  - The peer's bytes are untrusted: a violation brings the link down with a Status that names
//    value and limit.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/base/check.h"
#include "rpc/base/ids.h"
#include "rpc/fabric/link_counters.h"
#include "rpc/memory/region.h"

namespace verbena::fabric {

// How a lease is taken back by force; reported on the channel's status.
enum class Revocation : uint8_t { kWindow, kLeaseMr, kLane, kWord, kTable };

struct Traits {
  absl::string_view name;      // "shm", "tcp", "verbs", "sim"
  uint32_t segment_bytes = 0;  // the largest frame
  uint32_t slot_bytes =
      0;  // a frame of n bytes takes ceil(n / slot_bytes) slots of the receiver's window
  uint32_t window_slots = 0;  // the receive window per link and direction; like slot_bytes the same
                              // in every process that speaks this version
  uint32_t publish_bytes =
      0;  // hand over an open frame once it holds so much, so that both sides stay busy
  bool gathers_sends = false;  // frames leave at EndTick
  // SendCopy takes frames up to this size. 0 = it is not there: all frames go by AcquireFrame and
  // Send.
  uint32_t copied_bytes = 0;
  uint32_t read_chunk_bytes = 0;  // the largest Read; a chunk is atomic with respect to revocation
  // The same where neither end is memory that the host can touch; 0 = no other. What each copy by a
  // device costs to begin would be seen in chunks of the host's size.
  uint32_t device_chunk_bytes = 0;
  uint32_t reads_in_flight = 0;  // chunks worth posting at once on one link
  // READs between devices come in the order of LocalPiece::order, and ReadOrdered says when they
  // stand there; kNoMemory: there is no room. Others with one end with kUnsupported: wait first.
  bool orders_reads = false;
  bool prepares_lanes =
      false;  // lanes need PrepareLane, and Lease may copy device memory; else lane 0 is there
  // How READs come; kNone: OnReadPath says it for each.
  Path path = Path::kNone;
  // The same where an end is memory that the host cannot touch.
  Path device_path = Path::kNone;
  Revocation revocation = Revocation::kTable;
  bool bounds_enforced =
      false;  // the owner's side cannot be read outside a lease, whatever the peer does
};

// What lets the peer read one lease; opaque above the fabric. Carried in the payload table, one per
// piece and lane.
struct RemoteKey {
  std::array<uint64_t, 4> words{};
};

// One side's half of setting a link or a lane up: a blob for the handshake, descriptors for the
// side socket.
struct Offer {
  std::string blob;
  std::vector<int> fds;  // owned
};

enum class Side : uint8_t { kClient, kServer };

// Sockets that set-up made; the fabric owns what it takes (sets it to -1).
struct Sockets {
  int stream = -1;  // the TCP (or unix) connection on which HELLO was exchanged; stays with the
                    // session except on tcp
  int side = -1;    // a connected unix socket for descriptors, when both are on one host; else -1
};

// A send buffer, private to this side until it is sent. Bytes 0-1 of every frame are its length
// modulo 65536, little endian; Send writes them (the session's header leaves room, and need not set
// them). Nothing else in a frame is the fabric's.
struct OutFrame {
  std::byte* data = nullptr;
  uint32_t capacity = 0;
  uint32_t bytes = 0;  // set by the session before Send
  uint32_t token = 0;  // the fabric's
};

// Any memory of `device`, known to the domain or not: what a region registered with it covers is
// found by address, the rest the fabric registers or stages for this READ.
struct LocalPiece {
  memory::Device* device = nullptr;
  std::byte* data = nullptr;
  size_t bytes = 0;
  memory::StreamOrder order = {};  // of the copies into it, where traits().orders_reads
  // kNone: any; else, where traits().path is kNone, the READ ends with kUnsupported before a byte
  // moves by another.
  Path path = Path::kNone;
};

class EventSink {
 public:
  // `frame` is valid in this call only and is at least 8 bytes; its receive slots are reposted when
  // it returns.
  virtual void OnFrame(LinkId link, absl::Span<const std::byte> frame) = 0;
  // After AcquireFrame failed: it can succeed now.
  virtual void OnSendable(LinkId link) = 0;
  virtual void OnLeased(LeaseSlot slot, Error error, const RemoteKey& key) = 0;
  virtual void OnRevoked(LeaseSlot slot) = 0;
  virtual void OnReadDone(ReadSlot slot, Error error) = 0;
  // Just before it, where that is known: how the bytes came, or would have.
  virtual void OnReadPath(ReadSlot slot, Path path) { (void)slot, (void)path; }
  // At most once, before OnReadDone, and only where its pieces have a stream: what is queued there
  // from now on finds the bytes, or the device has failed. Until it is done the owner's end keeps
  // the memory, whether or not it has answered a revocation. Its path is said first.
  virtual void OnReadOrdered(ReadSlot slot) { (void)slot; }
  virtual void OnLaneDown(LinkId link, Lane lane, Error cause) = 0;
  // At most once, before OnLinkDown, where the fabric found the cause: that may have to wait for
  // copies that stand in streams, and until then nothing comes or goes any more.
  virtual void OnLinkEnding(LinkId link, const absl::Status& cause) { (void)link, (void)cause; }
  virtual void OnLinkDown(LinkId link, const absl::Status& cause) = 0;

 protected:
  ~EventSink() = default;
};

class Fabric {
 public:
  // May block; not on the setup thread. Links that are up end as by Close, without events.
  virtual ~Fabric() = default;
  virtual const Traits& traits() const = 0;

  // [S] Setting up. Prepare makes this side's half (the server's may use `peer_blob`, the client's
  // offer); Complete takes the other half. On error nothing is left behind. Abandon: the handshake
  // failed after Prepare.
  virtual absl::StatusOr<Offer> Prepare(LinkId link, Side side, absl::string_view peer_blob) = 0;
  virtual absl::Status Complete(LinkId link, Offer peer, Sockets& sockets) = 0;
  virtual void Abandon(LinkId link) = 0;
  // Between Complete and Start: which ways of READ were proved, and which are off with their
  // reason; for people.
  virtual std::string ReadWays(LinkId) const { return {}; }
  // Once the link is proved: memory that the library did not allocate is better copied into the
  // pools, and leased there, up to this size. 0: the peer reads it best where it lies.
  virtual uint64_t StagedBytesMax(LinkId) const { return 0; }
  // [S] A bulk lane, where traits().prepares_lanes. The owner's end prepares first. A successor may
  // be prepared while its predecessor is still on its way down.
  virtual absl::StatusOr<Offer> PrepareLane(LinkId link, Lane lane) = 0;
  virtual absl::Status CompleteLane(LinkId link, Lane lane, Offer peer) = 0;

  // The rest: reactor thread only (in the driver seat).

  // For statistics; zeros for what the fabric does not count, and for a link that is gone.
  virtual LinkCounters CountersOf(LinkId) const { return {}; }

  // From now on events of the link are delivered. Called once, after Complete.
  virtual void Start(LinkId link) = 0;

  // A buffer to fill. False: none is free now; OnSendable follows. What Send needs is reserved
  // here, so Send accepts.
  virtual bool AcquireFrame(LinkId link, OutFrame& frame) = 0;
  // Hands frames over in order, with one doorbell. The session keeps within the peer's credits.
  virtual void Send(LinkId link, absl::Span<const OutFrame> frames) = 0;
  // The end of a tick that may have handed frames over: where traits().gathers_sends, those of each
  // link leave now, with one doorbell; without this call, in the next Poll.
  virtual void EndTick() {}
  // Hands over one frame, in order with those of Send, that lies in the session's own memory and is
  // copied when this returns: for small frames cheaper than a buffer. At most
  // traits().copied_bytes, which a fabric without an implementation leaves 0; the memory is
  // readable up to whole cache lines, and the fabric writes the length into its copy. Always
  // accepted within the peer's credits; dropped, as by Send, where the link is on its way down.
  virtual void SendCopy(LinkId, const std::byte* /*frame*/, uint32_t bytes) {
    VERBENA_CHECK(false, "a frame of ", bytes, " bytes to a fabric that copies none");
  }
  // Gives a buffer back unsent.
  virtual void Discard(LinkId link, const OutFrame& frame) = 0;

  // Makes [data, data + bytes) of `region` readable for that link's peer over `lane`, until Revoke
  // or Release. The session keeps the region alive until OnRevoked (or OnLeased with an error).
  virtual void Lease(LeaseSlot slot, LinkId link, Lane lane, const memory::RegionRef& region,
                     const std::byte* data, size_t bytes) = 0;
  // Takes a lease back by force, whatever its reader does. It may cost the lane: always where
  // traits().revocation is kLane, and on some devices when a READ is under way.
  virtual void Revoke(LeaseSlot slot) = 0;
  // Ends a lease that its reader has let go of, or was never told of; OnRevoked answers. It never
  // costs the lane. Where only the lane's end could take the key back (kLane), a reader that lied
  // keeps it until then.
  virtual void Release(LeaseSlot slot) { Revoke(slot); }

  // READs [offset, offset + total of pieces) of the peer's lease into `pieces`, at most
  // traits().read_chunk_bytes. `pieces` are copied before this returns.
  virtual void Read(ReadSlot slot, LinkId link, Lane lane, const RemoteKey& key, uint64_t offset,
                    absl::Span<const LocalPiece> pieces) = 0;

  virtual void BreakLane(LinkId link, Lane lane) = 0;
  virtual void Close(LinkId link) = 0;

  // Looks once at everything and reports what happened. Returns whether there was anything, or
  // copies are left to do.
  virtual bool Poll(EventSink& sink) = 0;
  // Whether Poll has something to do that nothing rings for: what calls of this side's began.
  virtual bool HasLater() const = 0;
  // Before sleeping: asks peers to ring. True: something arrived meanwhile, poll again. Disarm:
  // awake again.
  virtual bool Arm() = 0;
  virtual void Disarm() = 0;
  // Readable when there may be something to poll, once armed. An epoll descriptor where there are
  // several.
  virtual int fd() const = 0;
  // The CPU on which the peers that are spinning last ran includes this one: spinning would only
  // take their time.
  virtual bool PeerOnThisCpu() const { return false; }
};

}  // namespace verbena::fabric
