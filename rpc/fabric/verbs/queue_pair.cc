#include "rpc/fabric/verbs/queue_pair.h"

#include <algorithm>
#include <array>
#include <random>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"

namespace verbena::fabric::verbs {
namespace {

using State = QueuePair::State;

// The transitions there are, and which attributes each sets: all that the specification requires.
struct Transition {
  State from, to;
  ibv_qp_state qp_state;
  int mask;
};
constexpr std::array kTransitions = {
    Transition{State::kReset, State::kInit, IBV_QPS_INIT,
               IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS},
    Transition{State::kInit, State::kReadyToReceive, IBV_QPS_RTR,
               IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                   IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER},
    Transition{State::kReadyToReceive, State::kReadyToSend, IBV_QPS_RTS,
               IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                   IBV_QP_MAX_QP_RD_ATOMIC},
    Transition{State::kInit, State::kError, IBV_QPS_ERR, IBV_QP_STATE},
    Transition{State::kReadyToReceive, State::kError, IBV_QPS_ERR, IBV_QP_STATE},
    Transition{State::kReadyToSend, State::kError, IBV_QPS_ERR, IBV_QP_STATE},
};

// A peer that has no receive posted is asked again after 0.64 ms, for ever: credits see to it that
// this never happens among the honest, and a READ or a link's end has its own deadline.
constexpr uint8_t kRnrTimer = 12;
constexpr uint8_t kRnrRetries = 7;
// 4.096 us x 2^14 = 67 ms without an acknowledgement, 6 times again: a peer that vanished is known
// after half a second. 7 would mean for ever on some devices.
constexpr uint8_t kTimeout = 14;
constexpr uint8_t kRetries = 6;
constexpr uint32_t kPsnMask = 0xffffff;

uint32_t RandomPsn() {
  // Seldom called, and good: an old packet must not fit a new queue pair of the same number.
  std::random_device device;
  return device() & kPsnMask;
}

absl::string_view NameOf(State state) {
  constexpr absl::string_view kNames[] = {"RESET", "INIT", "RTR", "RTS", "ERR"};
  return kNames[static_cast<size_t>(state)];
}

absl::Status NotTaken(absl::string_view what, uint64_t is, uint64_t set) {
  return absl::InternalError(
      absl::StrCat("verbs: the device has ", what, " ", is, ", set was ", set));
}

}  // namespace

absl::StatusOr<std::unique_ptr<QueuePair>> QueuePair::Create(const QueuePairOptions& options) {
  std::unique_ptr<QueuePair> pair(new QueuePair(options));
  ibv_qp_init_attr attributes = {};
  attributes.qp_context = options.listener;
  attributes.send_cq = attributes.recv_cq = options.cq;
  attributes.srq = options.srq;
  attributes.qp_type = IBV_QPT_RC;
  attributes.cap.max_send_wr = options.send_work;
  attributes.cap.max_recv_wr = options.srq == nullptr ? options.receive_work : 0;
  attributes.cap.max_send_sge = options.sge;
  attributes.cap.max_recv_sge = options.receive_work > 0 ? 1 : 0;
  attributes.cap.max_inline_data = options.inline_bytes;
  absl::StatusOr<ibv_qp*> made = Made("ibv_create_qp", ibv_create_qp(options.pd, &attributes));
  if (!made.ok()) return made.status();
  pair->qp_ = *made;
  pair->inline_bytes_ = std::min(options.inline_bytes, attributes.cap.max_inline_data);
  pair->local_.qp_number = pair->qp_->qp_num;
  pair->local_.psn = RandomPsn();
  DescribePort(options.port, pair->local_);
  pair->local_.read_depth_out = options.read_depth_out;
  pair->local_.read_depth_in = options.read_depth_in;
  const absl::Status status = pair->ToInit();
  if (!status.ok()) return status;
  return pair;
}

QueuePair::~QueuePair() {
  if (qp_ == nullptr) return;
  const absl::Status status = ErrnoReturned("ibv_destroy_qp", ibv_destroy_qp(qp_));
  if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
}

absl::Status QueuePair::Move(State to, ibv_qp_attr& attributes, int mask) {
  for (const Transition& t : kTransitions) {
    if (t.from != state_ || t.to != to) continue;
    VERBENA_CHECK(mask == t.mask, "transition ", NameOf(state_), " -> ", NameOf(to));
    attributes.qp_state = t.qp_state;
    absl::Status status = ErrnoReturned("ibv_modify_qp", ibv_modify_qp(qp_, &attributes, mask));
    if (!status.ok()) {
      return absl::Status(status.code(), absl::StrCat(status.message(), " (", NameOf(state_),
                                                      " -> ", NameOf(to), ")"));
    }
    state_ = to;
    return status;
  }
  return absl::FailedPreconditionError(
      absl::StrCat("verbs: a queue pair in ", NameOf(state_), " to ", NameOf(to)));
}

absl::Status QueuePair::ToInit() {
  ibv_qp_attr attributes = {};
  attributes.pkey_index = options_.port.pkey_index;
  attributes.port_num = options_.port.port;
  attributes.qp_access_flags = options_.remote_read ? IBV_ACCESS_REMOTE_READ : 0;
  return Move(State::kInit, attributes,
              IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS);
}

absl::Status QueuePair::Connect(const QueuePairEnd& peer) {
  const absl::StatusOr<Path> path =
      PathTo(options_.port, peer, options_.service_level, options_.traffic_class);
  if (!path.ok()) return path.status();
  absl::Status status = ToReadyToReceive(peer, *path);
  if (status.ok()) status = ToReadyToSend(peer);
  if (status.ok()) status = Verify(peer, *path);
  return status;
}

absl::Status QueuePair::ToReadyToReceive(const QueuePairEnd& peer, const Path& path) {
  ibv_qp_attr attributes = {};
  attributes.ah_attr = path.address;
  attributes.path_mtu = path.mtu;
  attributes.dest_qp_num = peer.qp_number;
  attributes.rq_psn = peer.psn;
  attributes.max_dest_rd_atomic = std::min(local_.read_depth_in, peer.read_depth_out);
  attributes.min_rnr_timer = kRnrTimer;
  return Move(State::kReadyToReceive, attributes,
              IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN |
                  IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER);
}

absl::Status QueuePair::ToReadyToSend(const QueuePairEnd& peer) {
  ibv_qp_attr attributes = {};
  attributes.timeout = kTimeout;
  attributes.retry_cnt = kRetries;
  attributes.rnr_retry = kRnrRetries;
  attributes.sq_psn = local_.psn;
  attributes.max_rd_atomic = std::min(local_.read_depth_out, peer.read_depth_in);
  return Move(State::kReadyToSend, attributes,
              IBV_QP_STATE | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_SQ_PSN |
                  IBV_QP_MAX_QP_RD_ATOMIC);
}

// Some drivers round or ignore what they are given; what matters is looked at.
absl::Status QueuePair::Verify(const QueuePairEnd& peer, const Path& path) const {
  ibv_qp_attr is = {};
  ibv_qp_init_attr initial = {};
  const int mask = IBV_QP_STATE | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_ACCESS_FLAGS |
                   IBV_QP_MAX_QP_RD_ATOMIC | IBV_QP_MAX_DEST_RD_ATOMIC;
  absl::Status status = ErrnoReturned("ibv_query_qp", ibv_query_qp(qp_, &is, mask, &initial));
  if (!status.ok()) return status;
  const uint64_t depth_out = std::min(local_.read_depth_out, peer.read_depth_in);
  const uint64_t depth_in = std::min(local_.read_depth_in, peer.read_depth_out);
  if (is.qp_state != IBV_QPS_RTS) return NotTaken("state", is.qp_state, IBV_QPS_RTS);
  if (is.dest_qp_num != peer.qp_number) {
    return NotTaken("the peer's number", is.dest_qp_num, peer.qp_number);
  }
  if (is.path_mtu != path.mtu) return NotTaken("MTU", is.path_mtu, path.mtu);
  // More than was asked for does no harm; less would end the queue pair at the first full window.
  if (is.max_rd_atomic < depth_out) return NotTaken("READ depth", is.max_rd_atomic, depth_out);
  if (is.max_dest_rd_atomic < depth_in) {
    return NotTaken("READ depth to answer", is.max_dest_rd_atomic, depth_in);
  }
  return status;
}

absl::Status QueuePair::Fail() {
  if (state_ == State::kError) return absl::OkStatus();
  ibv_qp_attr attributes = {};
  absl::Status status = Move(State::kError, attributes, IBV_QP_STATE);
  state_ = State::kError;
  return status;
}

absl::StatusOr<bool> QueuePair::Failed() const {
  ibv_qp_attr is = {};
  ibv_qp_init_attr initial = {};
  absl::Status status =
      ErrnoReturned("ibv_query_qp", ibv_query_qp(qp_, &is, IBV_QP_STATE, &initial));
  if (!status.ok()) return status;
  return is.qp_state == IBV_QPS_ERR || is.qp_state == IBV_QPS_SQE;
}

}  // namespace verbena::fabric::verbs
