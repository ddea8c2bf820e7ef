#pragma once
// What the tests of faults of the verbs fabric share: two fabrics with links, lanes and leases; a
// peer that keeps to nothing; and what the device has of each kind.
#include <infiniband/verbs.h>

#include <iosfwd>
#include <memory>
#include <string>
#include <vector>

#include "rpc/fabric/verbs/key.h"
#include "rpc/fabric/verbs/queue_pair.h"
#include "rpc/fabric/verbs/verbs_fabric.h"
#include "tests/contract/plain_device.h"
#include "tests/contract/verbs_subjects.h"

namespace verbena::fabric::verbs {

// Of the whole machine, of which nobody else uses the device. Windows: of this process, as nothing
// else counts them.
struct Resources {
  int pairs = 0;
  int queues = 0;
  int shared_queues = 0;
  int registrations = 0;
  int domains = 0;
  int windows = 0;
  friend bool operator==(const Resources&, const Resources&) = default;
};
std::ostream& operator<<(std::ostream& out, const Resources& r);
Resources ResourcesNow();

// How often a sender was told that no receive was posted, since the device exists.
uint64_t RnrEvents();

PortAddress TestPort();

// Soft-RoCE on kernels after 6.1: LOCAL_INV does not wait for the one packet whose bytes are being
// copied out of the window on another processor.
bool InvalidationMissesAPacket();

// Ways with an SRQ, each of which has its own rung; by window with the bounds that the self-test
// saw.
const std::vector<contract::Subject>& Rungs();

inline Lane ReaderLane(uint32_t generation = 1) { return {0, LaneRole::kReader, generation}; }
inline Lane OwnerLane(uint32_t generation = 1) { return {0, LaneRole::kOwner, generation}; }

// The server owns, the client READs. Its end checks that no sender met an empty pool, unless
// `rnr_expected`.
struct Rig {
  explicit Rig(const contract::Subject& subject);
  ~Rig();

  VerbsFabric& client() { return static_cast<VerbsFabric&>(pair.client()); }
  VerbsFabric& server() { return static_cast<VerbsFabric&>(pair.server()); }
  contract::Recorder& client_events() { return pair.client_events; }
  contract::Recorder& server_events() { return pair.server_events; }

  // A link with a bulk lane from server to client, and a lease of a pattern, READ once.
  void Open(LinkId link);
  // That everything of such a link works, with a lease of its own.
  void Works(LinkId link, uint32_t generation = 1);
  // Leases `bytes` at the start of `region`.
  RemoteKey Lease(LeaseSlot slot, LinkId link, size_t bytes, uint32_t generation = 1);
  void Read(ReadSlot slot, LinkId link, const RemoteKey& key, std::byte* to, size_t bytes,
            uint32_t generation = 1);
  Error Done(ReadSlot slot);
  void Revoked(LeaseSlot slot, bool by_force = true);
  // Closes it and waits for its end at both.
  void Closed(LinkId link);

  contract::Pair pair;
  memory::RegionRef region;  // 1 MiB, filled from seed 1
  bool rnr_expected = false;

 private:
  const uint64_t rnr_before_;
  uint32_t next_slot_ = 1000;
};

// This end's half of the queue pairs of a link, joined over the API of VerbsFabric and used as
// nobody honest would.
class RawPeer {
 public:
  // Connects a control lane, and the fabric starts the link. `receives`: what it posts for frames.
  RawPeer(VerbsFabric& fabric, LinkId link, bool start = true, size_t receives = 32);
  ~RawPeer();
  RawPeer(const RawPeer&) = delete;
  RawPeer& operator=(const RawPeer&) = delete;

  // A lane that this end READs from. Replaces the one before.
  void OpenLane(uint32_t generation = 1);

  ibv_qp* control() const { return control_->handle(); }
  ibv_qp* lane() const { return lane_->handle(); }
  static constexpr size_t kBytes = 1 << 20;
  std::byte* memory() { return memory_.data(); }
  ibv_sge Piece(size_t offset, size_t bytes) const;

  // Posts it, signalled; the order of completions is that of posting, on one queue pair.
  void Post(ibv_qp* qp, ibv_send_wr& work);
  // At most three that are not inline (64 bytes) may be under way.
  void PostFrame(uint32_t bytes, int length_said, bool immediate = false, uint32_t word = 0);
  void PostRead(ibv_qp* qp, uint64_t address, uint32_t rkey, size_t offset, size_t bytes);
  // The next completion of something posted. Fails when none comes in 10 s x kSlowdown, polling
  // `pair`.
  ibv_wc_status Next(contract::Pair* pair = nullptr);
  // The same without waiting: those there are.
  std::vector<ibv_wc_status> Those();

 private:
  bool Poll(ibv_wc& completion);
  VerbsFabric& fabric_;
  const LinkId link_;
  const PortAddress port_;
  ibv_pd* pd_ = nullptr;
  ibv_cq* cq_ = nullptr;
  ibv_mr* mr_ = nullptr;
  std::vector<std::byte> memory_;
  size_t frames_ = 0;
  std::unique_ptr<QueuePair> control_, lane_;
};

// Which of a link's queue pairs: the one on the SRQ, or the other.
ibv_qp* ControlPairOf(VerbsFabric& fabric, LinkId link);
ibv_qp* BulkPairOf(VerbsFabric& fabric, LinkId link);
// From outside, as a device does when it meets something that it cannot go on from.
void ForceError(ibv_qp* qp);

}  // namespace verbena::fabric::verbs

// Runs the case once for each rung.
#define VERBENA_EACH_RUNG(rung)                                          \
  const auto& rung = Rungs()[GENERATE(size_t{0}, size_t{1}, size_t{2})]; \
  INFO(rung.name);                                                       \
  if (!rung.skip.empty()) {                                              \
    WARN("skipped: " << rung.skip);                                      \
    return;                                                              \
  }
