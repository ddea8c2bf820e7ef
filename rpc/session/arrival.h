#pragma once
// A message on its way in whose head or body must be READ first: owns a copy of its record, the
// memory it is READ into, and the READ. Its owner hears of the end once, from the engine's poll.
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/types/span.h"
#include "rpc/memory/region.h"
#include "rpc/session/growing.h"
#include "rpc/session/session.h"
#include "rpc/session/transfers.h"
#include "rpc/wire/message.h"

namespace verbena::session {

class Arrival;

class ArrivalOwner {
 public:
  // The largest body that this message may have.
  virtual uint64_t BodyBytesMax() = 0;
  // OK: view() is complete and body() holds the body if it was leased. Else why: RESOURCE_EXHAUSTED
  // (a limit, memory), INTERNAL (the message does not parse), or what the READ or Stop said. No
  // READ is posted any more.
  virtual void OnArrived(const absl::Status& status) = 0;

 protected:
  ~ArrivalOwner() = default;
};

class Arrival final : public Fetch {
 public:
  Arrival(LinkImpl& link, ArrivalOwner& owner, wire::MessageKind kind,
          absl::Span<const std::byte> record);
  ~Arrival() override = default;

  // OnArrived is never inline.
  void Begin();
  // OnArrived(`why`) follows when nothing is posted any more.
  void Stop(const absl::Status& why);
  // The owner forgets it; it releases what it names and deletes itself when nothing is posted any
  // more.
  void Detach();
  bool ended() const { return ended_; }

  wire::MessageView& view() { return view_; }
  bool body_leased() const { return view_.body_leased; }
  memory::Block& body() { return body_; }
  // The payloads without the body.
  wire::PayloadTable TakeTable();
  // Some lease of the message, for a RELEASE of all; 0 = none.
  uint64_t AnyLease() const;
  void AddNames();

  void OnDone(const absl::Status& status) override;

 private:
  absl::Status BeginHead();
  absl::Status BeginBody();
  absl::Status DecodeFrom(absl::Span<const std::byte> content);
  absl::Status Read(const wire::PayloadEntry& entry, memory::Block& into);
  void OnGrown(const wire::PayloadEntry& from, memory::Block& into,
               absl::StatusOr<memory::Block> block);
  void StartRead(const wire::PayloadEntry& from, memory::Block& into);
  void LeaveHead();
  void ReleaseOne(uint64_t lease);
  void End(const absl::Status& status);

  enum class Step : uint8_t { kBegin, kHead, kBody, kFailed };

  LinkImpl& link_;
  ArrivalOwner* owner_;  // null: detached
  const wire::MessageKind kind_;
  const uint8_t flags_;
  std::vector<std::byte> record_;
  Step step_ = Step::kBegin;
  bool head_begun_ = false;  // the link counts it
  bool ended_ = false;
  std::shared_ptr<Growing> growing_;  // the pool makes room
  uint64_t counted_bytes_ = 0;        // of link.arriving_bytes
  absl::Status failure_;
  wire::PayloadEntry head_entry_;
  memory::Block head_;
  memory::Block body_;
  wire::MessageView view_;
};

}  // namespace verbena::session
