#pragma once
// sim::Network: a fabric in one process for the tests of everything above it. Endpoints made from
// one Network reach each other; time is virtual, every delay and fault is drawn from one seed, so a
// failing run is replayed by its seed.
//
//   sim::Network network({.seed = 7});
//   auto a = network.MakeEndpoint();
//   auto b = network.MakeEndpoint();      // then Prepare, Complete, Start, as on any fabric
//   network.SetFaults({.read_lost = 0.1});
//
// Modelled on verbs: READs finish in any order, a READ refused by its key breaks the lane, receives
// must be posted (a sender beyond its credits takes the link down), revocation completes later than
// it is asked for.
#include <cstdint>
#include <functional>
#include <memory>

#include "rpc/fabric/fabric.h"

namespace verbena::fabric::sim {

class State;

struct NetworkOptions {
  uint64_t seed = 1;
  uint32_t segment_bytes = 8 * 1024;
  uint32_t slot_bytes = 512;
  uint32_t window_slots = 64;
  uint32_t publish_bytes = 512;
  uint32_t copied_bytes = 0;  // 0: every frame takes a send buffer
  bool gathers_sends = false;
  uint32_t read_chunk_bytes = 64 * 1024;
  uint32_t reads_in_flight = 4;
  uint32_t send_buffers = 16;  // per link; AcquireFrame fails beyond
  bool prepares_lanes = true;
  bool bounds_enforced = true;
  Revocation revocation =
      Revocation::kWindow;  // kLane: a revocation breaks the owner's end of the lane
  bool refused_read_breaks_lane = true;
  int64_t delay_min_ns = 500;
  int64_t delay_max_ns = 5'000;
  // What each Poll of any endpoint adds to the clock; 0: only Advance moves it.
  int64_t advance_per_poll_ns = 200;
};

// Probabilities in [0, 1], drawn per operation.
struct Faults {
  double read_lost = 0;  // never completes, until its lane is broken
  double read_breaks_lane = 0;
  double frame_late = 0;           // 100 times the longest delay
  double lease_refused = 0;        // OnLeased(kNoMemory)
  Error read_answer = Error::kOk;  // not kOk: what owners say of every READ
  bool no_lanes = false;           // PrepareLane fails
  bool hold_reads = false;         // READs do not complete until this is off again
};

struct Statistics {
  uint64_t frames = 0, reads = 0, reads_refused = 0, lanes_broken = 0, overruns = 0;
};

// Any thread; its endpoints as fabric.h says.
class Network {
 public:
  explicit Network(const NetworkOptions& options = {});
  ~Network();

  std::unique_ptr<Fabric> MakeEndpoint();

  int64_t now_ns() const;
  void Advance(int64_t ns);
  void SetFaults(const Faults& faults);
  Statistics statistics() const;

  // The process behind `endpoint` is gone: it hears and says nothing any more, its peers' links go
  // down.
  void Kill(Fabric& endpoint);
  // The link breaks at both ends.
  void CutLink(Fabric& endpoint, LinkId link);
  // This end of the lane goes into error, as by a completion with an error.
  void BreakLane(Fabric& endpoint, LinkId link, Lane lane);

 private:
  std::shared_ptr<State> state_;
};

}  // namespace verbena::fabric::sim
