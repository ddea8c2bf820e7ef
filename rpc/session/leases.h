#pragma once
// Memory of ours that a peer may READ: the state of each lease. LEASES.md beside this file walks
// the cases.
//
// The leases of one message form a LeaseGroup. Its holder hears OnLeased once all of them can be
// used by the peer, and OnLeasesEnded once none is left: then, and only then, the memory is the
// holder's again. Both come from the engine's poll, never inline.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "rpc/base/ids.h"
#include "rpc/base/slot_table.h"
#include "rpc/fabric/fabric.h"
#include "rpc/memory/region.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/ready_waiter.h"

namespace verbena::session {

class LinkImpl;
class LeaseGroup;

enum class LeaseState : uint8_t {
  kIdle,      // the fabric does not know it: its lane is not up (yet, or not again)
  kLeasing,   // Lease posted
  kLive,      // the peer may READ it
  kRevoking,  // Revoke posted; then it ends, or (its lane broke) is made again
};

struct Lease {
  LeaseGroup* group = nullptr;
  LeaseState state = LeaseState::kIdle;
  bool ending = false;      // nothing but its end is wanted any more
  uint32_t generation = 0;  // of the lane it was posted to
  memory::RegionRef region;
  const std::byte* data = nullptr;
  uint64_t bytes = 0;
  fabric::RemoteKey key;
  // Of a payload that lies in several regions: its leases, by their places in the group. The peer
  // knows all of them by the name of the first.
  uint32_t first = 0;
  uint32_t pieces = 1;
};
using LeaseTable = SlotTable<Lease, LeaseTag>;

class LeaseHolder {
 public:
  virtual void OnLeased() = 0;
  virtual void OnLeasesEnded() = 0;

 protected:
  ~LeaseHolder() = default;
};

class LeaseGroup final : public ListNode<LeaseGroup>, public ReadyWaiter {
 public:
  LeaseGroup(LinkImpl& link, LeaseHolder& holder) : link_(link), holder_(holder) {}
  ~LeaseGroup();

  // Before Start. The region is held until the lease ended. `piece` of `pieces` leases that are
  // added one after the other, and have one name.
  void Add(const memory::RegionRef& region, const std::byte* data, uint64_t bytes,
           uint32_t piece = 0, uint32_t pieces = 1);
  uint64_t bytes() const { return bytes_; }
  size_t count() const { return slots_.size(); }
  // Before Start. It is not usable before that is ready; if the device fails first, it ends with
  // kFault.
  void Await(const memory::ReadinessRef& after);
  // False: the table is full (kLeasesMax); nothing was started.
  bool Start();
  // Whether the peer can use all of it now.
  bool usable() const { return started_ && pending_ == 0 && !ending_; }
  // Not OK: it ended because the fabric could not lease.
  Error error() const { return error_; }
  const fabric::RemoteKey& key(size_t index) const;
  uint64_t name(size_t index) const { return slots_[index].word(); }
  // The peer has been told: from now on new keys are sent to it.
  void SetAnnounced();
  bool announced() const { return announced_; }

  // The peer was asked to stop reading: after `grace` the group ends by force.
  void Ask(int64_t now_ns, int64_t grace_ns);
  // Ends all that is left: the peer is done with it, or never knew of it.
  void End() { EndAll(false); }
  void EndOne(LeaseSlot slot);
  // 0 = none; then RECALL, then force.
  void SetAgeMax(int64_t due_ns);
  void Expire(int64_t now_ns);

  // ---- events
  void OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key);
  void OnRevoked(LeaseSlot slot);
  void OnLaneUp();
  void OnLaneDown();
  // The lane stays down: what is not live cannot be.
  void OnLaneFailed();
  void OnLinkDown();
  void Notify();  // by the engine, for NotifyLater
  bool PollReady(bool ask) override;

  LinkImpl& link() const { return link_; }
  bool notify_queued = false;

 private:
  Lease* Find(LeaseSlot slot) const;
  void Post(LeaseSlot slot, Lease& lease);
  void EndAll(bool by_force);
  void EndLease(LeaseSlot slot, Lease& lease, bool by_force);
  void Finish(LeaseSlot slot, Lease& lease);
  // The keys of its payload, when all of them are there.
  void SendKeys(const Lease& lease);
  void SendRecall();

  LinkImpl& link_;
  LeaseHolder& holder_;
  std::vector<LeaseSlot> slots_;
  uint64_t bytes_ = 0;
  size_t live_ = 0;                            // not ended
  size_t pending_ = 0;                         // not live yet
  std::vector<memory::ReadinessRef> awaited_;  // one more is pending_ while there are some
  bool started_ = false;
  bool told_leased_ = false;
  bool announced_ = false;
  bool ending_ = false;
  Error error_ = Error::kOk;
  int64_t force_due_ns_ = 0;
  int64_t age_due_ns_ = 0;
};

// What a group's error means for the call that needed `what` leased: UNAVAILABLE where the peer or
// its lane is gone, else RESOURCE_EXHAUSTED.
absl::Status WhyNotLeased(Error error, absl::string_view what);

}  // namespace verbena::session
