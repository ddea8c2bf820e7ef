#pragma once
// What the endpoints of one sim::Network share: the clock, the links' ends (ports), the leases, the
// events on their way. One lock guards it all; sinks are called without it.
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "rpc/fabric/sim/network.h"

namespace verbena::fabric::sim {

class Endpoint;

struct Event {
  enum class Kind : uint8_t {
    kFrame,
    kSendDone,
    kSendable,
    kLeased,
    kRevoked,
    kReadDone,
    kLaneDown,
    kPeerGone,
    kLinkDown
  };
  Kind kind = Kind::kFrame;
  uint64_t port = 0;
  LinkId link = LinkId::kNone;
  Lane lane;
  LeaseSlot lease;
  ReadSlot read;
  Error error = Error::kOk;
  bool by_force = false;  // kRevoked
  RemoteKey key;
  absl::Status status;
  std::vector<std::byte> frame;
};

struct PendingRead {
  Lane lane;
  RemoteKey key;
  uint64_t offset = 0;
  std::vector<LocalPiece> pieces;
  bool flushed = false;  // its lane broke; the answer is queued
};

struct LaneEnd {
  uint32_t generation = 0;
  bool prepared = false;
  bool up = false;
};

// One end of a link. Named by its token, which is never used again.
struct Port {
  uint64_t token = 0;
  uint64_t peer = 0;  // 0 until Complete
  Endpoint* owner = nullptr;
  LinkId link = LinkId::kNone;
  bool started = false;
  bool down = false;
  std::deque<Event> held;        // what came before Start
  int64_t last_due_ns = 0;       // control events keep their order
  uint32_t slots_in_flight = 0;  // of frames to this port, not yet delivered
  std::vector<std::unique_ptr<std::byte[]>> buffers;
  std::vector<uint32_t> free_buffers;
  bool wants_sendable = false;
  std::map<std::pair<LaneRole, uint8_t>, LaneEnd> lanes;
  std::map<uint64_t, PendingRead> reads;  // by ReadSlot::word()
  std::map<uint64_t, uint64_t> leases;    // LeaseSlot::word() -> lease id
};

struct Lease {
  uint64_t nonce = 0;
  uint64_t owner = 0;  // port
  Lane lane;
  memory::RegionRef region;
  const std::byte* data = nullptr;
  size_t bytes = 0;
};

class State {
 public:
  explicit State(const NetworkOptions& o) : options(o), random(o.seed) {}

  Port* FindPort(uint64_t token);
  int64_t Delay();
  bool Chance(double probability);
  // Queues an event of `port`: in order with its other control events, or (READs) whenever it
  // comes.
  void Post(Port& port, Event event, int64_t due_ns, bool ordered);
  void PostNow(Port& port, Event event);
  void TakeDown(Port& port, const absl::Status& cause, bool tell_peer);
  // Answers for the READs of this end of the lane, then reports it down.
  void BreakLane(Port& port, Lane lane, Error cause);
  // Does the READ and returns what it comes to.
  Error Execute(Port& port, const PendingRead& read);
  bool LaneUp(const Port& port, Lane lane) const;

  const NetworkOptions options;
  std::mutex mutex;
  std::mt19937_64 random;
  int64_t now_ns = 0;
  uint64_t sequence = 0;
  Faults faults;
  Statistics statistics;
  std::unordered_map<uint64_t, std::unique_ptr<Port>> ports;
  std::unordered_map<uint64_t, Lease> leases;
  std::vector<Endpoint*> endpoints;

 private:
  Error Check(const Port& port, const PendingRead& read, const Lease** lease) const;
  std::map<memory::Device*, std::unique_ptr<memory::CopyEngine>> engines_;
};

}  // namespace verbena::fabric::sim
