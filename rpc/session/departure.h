#pragma once
// A message on its way out that could not be written into a frame at once: it waits for credits,
// for an open call, for its leases, or several of these. Owns copies of what it was given, and the
// leases of its payloads.
//
// A body above the inline limit is leased (from its own region, or copied into a block); a message
// whose sections pass a frame even so gets them into a block too, and that is leased
// (kFlagHeadLeased).
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "rpc/memory/region.h"
#include "rpc/session/growing.h"
#include "rpc/session/intrusive_list.h"
#include "rpc/session/leases.h"
#include "rpc/session/session.h"
#include "rpc/wire/message.h"

namespace verbena::session {

class LinkImpl;

class DepartureOwner : public LeaseHolder {
 public:
  // Memory that FitsBudget waited for will not come. In the engine's poll.
  virtual void OnNoMemory(const absl::Status& why) = 0;

 protected:
  ~DepartureOwner() = default;
};

class Departure {
 public:
  Departure(LinkImpl& link, DepartureOwner& owner, wire::MessageKind kind)
      : link_(link), owner_(owner), kind_(kind) {}
  ~Departure();

  // Copies what is borrowed. `status` null or OK: a body. RESOURCE_EXHAUSTED, INVALID_ARGUMENT:
  // nothing was started.
  absl::Status Capture(const Outgoing& message, const absl::Status* status,
                       uint64_t wide_timeout_us);
  // Whether the link's budget of announced bytes has room, and the memory of a head or body is
  // there; an error if the budget never can. The link's OnBudget follows when that changes.
  absl::StatusOr<bool> FitsBudget() const;
  // Makes the leases. False: none can be made now (kLeasesMax).
  bool StartLeases() { return group_ == nullptr || group_->Start(); }

  LeaseGroup* group() const { return group_.get(); }
  void DropGroup() { group_.reset(); }
  bool usable() const { return group_ == nullptr || group_->usable(); }

  // Bytes of the whole record, its padding included; at most record_bytes_max.
  uint32_t RecordBytes() const;
  // Writes the record's sections after `fixed_bytes` and returns the record's flags. Needs
  // usable().
  uint8_t Write(std::byte* record);

 private:
  uint32_t fixed_bytes() const {
    return kind_ == wire::MessageKind::kRequest ? wire::kRequestHeaderBytes
                                                : wire::kReplyHeaderBytes;
  }
  // One that lies in several mappings of a device is several pieces, each with a lease. The first
  // of them.
  size_t LeasePayload(const OutgoingPayload& payload, wire::PayloadEntry& entry);
  void LeaseBody(const Outgoing& message);
  absl::Status LeaseHead();
  // The pool makes a block, which `fill` writes; then it is `into`, and leased as *lease.
  void Grow(uint64_t bytes, Growing::Fill fill, memory::Block& into, size_t& lease);
  size_t AddLease(const memory::RegionRef& region, const std::byte* data, uint64_t bytes);
  wire::MessageParts Parts() const;
  void FillKeys(wire::PayloadEntry& entry, size_t lease) const;
  wire::PayloadEntry HeadEntry() const;

  static constexpr size_t kNoLease = ~size_t{0};

  LinkImpl& link_;
  DepartureOwner& owner_;
  const wire::MessageKind kind_;
  absl::Status status_;
  uint64_t wide_timeout_us_ = 0;
  std::vector<std::pair<std::string, std::string>> metadata_;
  std::vector<wire::MetadataPair> metadata_view_;
  std::vector<std::byte> body_;
  std::vector<std::shared_ptr<Growing>> growing_;  // of body and head
  uint64_t growing_bytes_ = 0;                     // still missing
  bool body_leased_ = false;
  bool head_leased_ = false;
  wire::PayloadTable table_;
  std::vector<size_t> lease_of_;  // entry without the body -> lease of the group
  size_t body_lease_ = kNoLease;
  size_t head_lease_ = kNoLease;
  memory::Block body_block_;
  memory::Block head_block_;
  uint64_t head_bytes_ = 0;
  std::unique_ptr<LeaseGroup> group_;
};

}  // namespace verbena::session
