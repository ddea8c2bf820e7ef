#pragma once
// verbs::QueuePair: one RC queue pair, brought up by hand. It goes through its states once, in the
// order of the transition table in queue_pair.cc, and never back: a queue pair that failed is
// drained, destroyed and replaced, never reset.
//
//   auto pair = QueuePair::Create(options);       // Reset -> Init
//   send pair->local() to the peer
//   pair->Connect(peer);                          // Init -> RTR -> RTS, verified
//   ibv_post_send(pair->handle(), ...)
//   pair->Fail();                                 // -> Error: what is posted completes as flushed
//
// Everything but handle(), local() and number() may take milliseconds: setup thread only.
#include <infiniband/verbs.h>

#include <cstdint>
#include <memory>

#include "absl/status/statusor.h"
#include "rpc/fabric/verbs/device.h"
#include "rpc/fabric/verbs/offer.h"
#include "rpc/fabric/verbs/path.h"

namespace verbena::fabric::verbs {

struct QueuePairOptions {
  PortAddress port;
  ibv_pd* pd = nullptr;
  ibv_cq* cq = nullptr;                // for sends and receives
  ibv_srq* srq = nullptr;              // null: receives of its own
  DeviceListener* listener = nullptr;  // who hears of this queue pair's events; outlives it
  uint32_t send_work = 0;
  uint32_t receive_work = 0;  // without an SRQ
  uint32_t sge = 1;
  uint32_t inline_bytes = 0;  // asked for; see QueuePair::inline_bytes
  // What the peer may do to our memory: nothing, or READ it.
  bool remote_read = false;
  // READs under way at a time. Zero: this end sends none, or answers none.
  uint8_t read_depth_out = 0;
  uint8_t read_depth_in = 0;
  uint8_t traffic_class = 0;
  uint8_t service_level = 0;
};

class QueuePair {
 public:
  enum class State : uint8_t { kReset, kInit, kReadyToReceive, kReadyToSend, kError };

  // Errors are those of calls.h.
  static absl::StatusOr<std::unique_ptr<QueuePair>> Create(const QueuePairOptions& options);
  // Destroys it. What it still had posted never completes: Fail and drain it first. Windows that
  // are bound to it must have been deallocated, or this takes most of a minute on some devices.
  ~QueuePair();
  QueuePair(const QueuePair&) = delete;
  QueuePair& operator=(const QueuePair&) = delete;

  ibv_qp* handle() const { return qp_; }
  uint32_t number() const { return qp_->qp_num; }
  const QueuePairEnd& local() const { return local_; }
  // Sends up to so many bytes may be posted inline.
  uint32_t inline_bytes() const { return inline_bytes_; }
  State state() const { return state_; }

  // To RTS. INVALID_ARGUMENT: the peer's port cannot be reached from ours (path.h). INTERNAL: the
  // device has not taken a value that was set.
  absl::Status Connect(const QueuePairEnd& peer);
  // From any state. An error means that the device is gone; it counts as failed all the same.
  absl::Status Fail();
  // Whether the device has put it into the error state.
  absl::StatusOr<bool> Failed() const;

 private:
  explicit QueuePair(const QueuePairOptions& options) : options_(options) {}
  absl::Status Move(State to, ibv_qp_attr& attributes, int mask);
  absl::Status ToInit();
  absl::Status ToReadyToReceive(const QueuePairEnd& peer, const Path& path);
  absl::Status ToReadyToSend(const QueuePairEnd& peer);
  absl::Status Verify(const QueuePairEnd& peer, const Path& path) const;

  const QueuePairOptions options_;
  ibv_qp* qp_ = nullptr;
  State state_ = State::kReset;
  QueuePairEnd local_;
  uint32_t inline_bytes_ = 0;
};

}  // namespace verbena::fabric::verbs
