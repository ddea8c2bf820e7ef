#include <chrono>
#include <cstring>
#include <thread>

#include "rpc/base/check.h"
#include "rpc/base/slowdown.h"
#include "rpc/fabric/verbs/offer.h"
#include "tests/fabric/verbs_rig.h"

namespace verbena::fabric::verbs {
namespace {

constexpr uint32_t kWork = 1024;
constexpr uint32_t kInline = 64;

QueuePairOptions OptionsOf(const PortAddress& port, ibv_pd* pd, ibv_cq* cq) {
  QueuePairOptions options;
  options.port = port;
  options.pd = pd;
  options.cq = cq;
  options.send_work = kWork;
  options.receive_work = 64;
  options.inline_bytes = kInline;
  options.read_depth_out = 16;
  return options;
}

std::unique_ptr<QueuePair> MakePair(const QueuePairOptions& options) {
  absl::StatusOr<std::unique_ptr<QueuePair>> made = QueuePair::Create(options);
  INFO(made.status());
  REQUIRE(made.ok());
  return *std::move(made);
}

}  // namespace

RawPeer::RawPeer(VerbsFabric& fabric, LinkId link, bool start, size_t receives)
    : fabric_(fabric), link_(link), port_(TestPort()), memory_(kBytes) {
  ibv_context* const context = port_.device->context();
  pd_ = ibv_alloc_pd(context);
  cq_ = ibv_create_cq(context, 4 * kWork, nullptr, nullptr, 0);
  const int access = IBV_ACCESS_LOCAL_WRITE;
  mr_ = ibv_reg_mr(pd_, memory_.data(), kBytes, access);
  REQUIRE((pd_ != nullptr && cq_ != nullptr && mr_ != nullptr));
  control_ = MakePair(OptionsOf(port_, pd_, cq_));
  for (size_t i = 0; i < receives; ++i) {  // for what the fabric says
    ibv_sge piece = Piece(kBytes / 2 + i * 8192, 8192);
    ibv_recv_wr work = {};
    work.sg_list = &piece;
    work.num_sge = 1;
    ibv_recv_wr* refused = nullptr;
    REQUIRE(ibv_post_recv(control(), &work, &refused) == 0);
  }
  absl::StatusOr<Offer> theirs = fabric.Prepare(link, Side::kServer, {});
  REQUIRE(theirs.ok());
  absl::StatusOr<LinkOffer> offer = ParseLinkOffer(theirs->blob);
  REQUIRE(offer.ok());
  offer->end.read_depth_in = 16;  // as if READs were welcome, so that they are sent
  REQUIRE(control_->Connect(offer->end).ok());
  offer->end = control_->local();
  Sockets none;
  REQUIRE(fabric.Complete(link, Offer{LinkOfferBlob(*offer), {}}, none).ok());
  if (start) fabric.Start(link);
}

RawPeer::~RawPeer() {
  lane_.reset();
  control_.reset();
  VERBENA_CHECK(ibv_dereg_mr(mr_) == 0);
  VERBENA_CHECK(ibv_destroy_cq(cq_) == 0);
  VERBENA_CHECK(ibv_dealloc_pd(pd_) == 0);
}

void RawPeer::OpenLane(uint32_t generation) {
  lane_ = MakePair(OptionsOf(port_, pd_, cq_));
  const Lane theirs{0, LaneRole::kOwner, generation};
  absl::StatusOr<Offer> offered = fabric_.PrepareLane(link_, theirs);
  REQUIRE(offered.ok());
  absl::StatusOr<LaneOffer> offer = ParseLaneOffer(offered->blob);
  REQUIRE(offer.ok());
  REQUIRE(lane_->Connect(offer->end).ok());
  offer->end = lane_->local();
  REQUIRE(fabric_.CompleteLane(link_, theirs, Offer{LaneOfferBlob(*offer), {}}).ok());
}

ibv_sge RawPeer::Piece(size_t offset, size_t bytes) const {
  return {reinterpret_cast<uint64_t>(memory_.data() + offset), static_cast<uint32_t>(bytes),
          mr_->lkey};
}

void RawPeer::Post(ibv_qp* qp, ibv_send_wr& work) {
  work.send_flags |= IBV_SEND_SIGNALED;
  work.wr_id = 1;
  ibv_send_wr* refused = nullptr;
  REQUIRE(ibv_post_send(qp, &work, &refused) == 0);
}

void RawPeer::PostFrame(uint32_t bytes, int length_said, bool immediate, uint32_t word) {
  // Of its own, as the device may read it later.
  const size_t offset = kBytes / 4 + (frames_++ % 3) * (80 << 10);
  std::byte* const frame = memory() + offset;
  const auto length = static_cast<uint16_t>(length_said);
  memcpy(frame, &length, sizeof length);
  ibv_sge piece = Piece(offset, bytes);
  ibv_send_wr work = {};
  work.sg_list = &piece;
  work.num_sge = bytes > 0 ? 1 : 0;
  work.opcode = immediate ? IBV_WR_SEND_WITH_IMM : IBV_WR_SEND;
  work.imm_data = word;
  if (bytes <= kInline) work.send_flags = IBV_SEND_INLINE;
  Post(control(), work);
}

void RawPeer::PostRead(ibv_qp* qp, uint64_t address, uint32_t rkey, size_t offset, size_t bytes) {
  ibv_sge piece = Piece(offset, bytes);
  ibv_send_wr work = {};
  work.sg_list = &piece;
  work.num_sge = 1;
  work.opcode = IBV_WR_RDMA_READ;
  work.wr.rdma.remote_addr = address;
  work.wr.rdma.rkey = rkey;
  Post(qp, work);
}

// What it receives is of no interest.
bool RawPeer::Poll(ibv_wc& completion) {
  while (ibv_poll_cq(cq_, 1, &completion) > 0) {
    if (completion.wr_id == 1) return true;
  }
  return false;
}

ibv_wc_status RawPeer::Next(contract::Pair* pair) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(10) * kSlowdown;
  ibv_wc completion = {};
  while (!Poll(completion)) {
    REQUIRE(std::chrono::steady_clock::now() < end);
    if (pair != nullptr) {
      pair->PollOnce();
    } else {
      std::this_thread::yield();
    }
  }
  return completion.status;
}

std::vector<ibv_wc_status> RawPeer::Those() {
  std::vector<ibv_wc_status> statuses;
  ibv_wc completion = {};
  while (Poll(completion)) statuses.push_back(completion.status);
  return statuses;
}

}  // namespace verbena::fabric::verbs
