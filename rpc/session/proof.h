#pragma once
// A new link proves itself before anyone uses it: the client's first frame is READY; then each side
// leases a pattern of 64 bytes to the other (PATTERN), who READs it, compares, and says PROVED. So
// each side's frames, leases and READs have worked once when calls begin.
#include <memory>

#include "absl/functional/any_invocable.h"
#include "absl/status/statusor.h"
#include "rpc/memory/region.h"
#include "rpc/session/growing.h"
#include "rpc/session/leases.h"
#include "rpc/session/session.h"
#include "rpc/wire/control.h"

namespace verbena::session {

class LinkImpl;

class Proof final : public LeaseHolder, public Fetch {
 public:
  explicit Proof(LinkImpl& link) : link_(link) {}
  ~Proof() override;

  // Within `timeout_ns`, in which time that this side's pool takes to make memory does not count.
  void Begin(int64_t timeout_ns);
  // Not OK: the peer broke the protocol.
  absl::Status OnReady();
  absl::Status OnPattern(wire::Pattern pattern);
  absl::Status OnProved();
  void Expire(int64_t now_ns);
  // Nothing of it is leased, posted or queued any more.
  bool over() const { return group_ == nullptr && !reading_; }

  void OnLeased() override;
  void OnLeasesEnded() override;
  void OnDone(const absl::Status& status) override;

 private:
  void Restart();
  void LeasePattern();
  void LeaseNow(memory::Block block);
  void ReadNow(memory::Block block);
  // `then` has it at once where the pool has room, else when it was made.
  void WithBlock(std::shared_ptr<Growing>& growing, void (Proof::*then)(memory::Block));
  void MaybeProved();

  LinkImpl& link_;
  int64_t timeout_ns_ = 0;
  int64_t due_ns_ = 0;
  uint64_t seed_ = 0;
  memory::Block mine_;
  memory::Block theirs_;
  std::unique_ptr<LeaseGroup> group_;
  std::shared_ptr<Growing> mine_growing_, theirs_growing_;
  wire::Pattern pattern_;
  bool ready_ = false;
  bool pattern_came_ = false;
  bool reading_ = false;
  bool read_ok_ = false;
  bool proved_by_peer_ = false;
};

}  // namespace verbena::session
