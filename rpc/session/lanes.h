#pragma once
// The bulk lanes of one link: one per direction. The reader's end posts READs; the owner's end
// leases. Where the fabric prepares lanes, the first lease makes the owner's lane, both ends are
// set up on the setup thread, and a broken lane gets a successor with the next generation:
// LANE_OFFER from the owner, LANE_READY from the reader. Elsewhere lane 0 always exists. After
// three rebuilds in ten seconds the lane stays down for as long: what is lost so often is not worth
// the setup thread's time. Then the next lease makes it again.
#include <cstdint>
#include <deque>
#include <string>

#include "rpc/base/ids.h"
#include "rpc/fabric/fabric.h"
#include "rpc/wire/control.h"

namespace verbena::session {

class LinkImpl;

class Lanes {
 public:
  explicit Lanes(LinkImpl& link);

  fabric::Traits const& traits() const;
  bool owner_up() const { return owner_.state == State::kUp; }
  bool reader_up() const { return reader_.state == State::kUp; }
  bool ReaderFailed();
  Lane owner_lane() const { return {0, LaneRole::kOwner, owner_.generation}; }
  Lane reader_lane() const { return {0, LaneRole::kReader, reader_.generation}; }
  // Whether leases can be made now; if not, starts what makes that true: groups hear OnLaneUp, or
  // OnLaneFailed.
  bool WantOwnerLane();
  // READs do not come back: ends them.
  void BreakReaderLane();

  // ---- events
  void OnFabricLaneDown(Lane lane, Error cause);
  // Not OK: the peer broke the protocol.
  absl::Status OnRecord(wire::RecordType type, const wire::LaneRecord& record);

 private:
  enum class State : uint8_t {
    kNone,
    kPreparing,
    kOffered,
    kCompleting,
    kUp,
    kBreaking,
    kDown,
    kFailed
  };
  struct End {
    explicit End(LaneRole r) : role(r) {}
    const LaneRole role;
    State state = State::kNone;
    uint32_t generation = 0;
    int64_t failed_ns = 0;  // kFailed: since when
    std::deque<int64_t> broken_ns;
    std::deque<int64_t> offered_ns;  // the peer's offers
  };

  End& EndOf(LaneRole role) { return role == LaneRole::kOwner ? owner_ : reader_; }
  Lane LaneOf(const End& end) const { return {0, end.role, end.generation}; }
  // Counts what happened now; false: it has happened `times_max` times in kLaneRebuildWindowNs.
  bool Count(std::deque<int64_t>& times_ns, size_t times_max);
  void PrepareOwner();
  void OnOwnerPrepared(uint32_t generation, absl::StatusOr<fabric::Offer> offer);
  absl::Status OnOffer(const wire::LaneRecord& record);
  void OnReaderPrepared(uint32_t generation, absl::StatusOr<fabric::Offer> offer);
  absl::Status OnReady(const wire::LaneRecord& record);
  void OnOwnerCompleted(uint32_t generation, const absl::Status& status);
  void OnDownRecord(const wire::LaneRecord& record);
  void Fail(End& end);
  bool MayTryAgain(const End& end) const;
  void Send(wire::RecordType type, const End& end, uint32_t cause, absl::string_view blob);

  LinkImpl& link_;
  End owner_{LaneRole::kOwner};
  End reader_{LaneRole::kReader};
};

}  // namespace verbena::session
