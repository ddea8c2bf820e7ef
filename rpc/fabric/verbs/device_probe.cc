#include "rpc/fabric/verbs/device_probe.h"

#include <algorithm>
#include <cerrno>

#include "absl/cleanup/cleanup.h"
#include "rpc/fabric/verbs/calls.h"

namespace verbena::fabric::verbs {
namespace {

// READ depths are one byte of a QP's attributes.
constexpr uint32_t kReadDepthMax = 255;

uint32_t Positive(int value) { return value > 0 ? static_cast<uint32_t>(value) : 0; }

// Asks for less and less until a QP is granted.
uint32_t TryInline(ibv_pd* pd, ibv_cq* cq) {
  for (uint32_t bytes = kInlineBytesAsked; bytes >= 32; bytes /= 2) {
    ibv_qp_init_attr wanted{};
    wanted.send_cq = wanted.recv_cq = cq;
    wanted.qp_type = IBV_QPT_RC;
    wanted.cap = {.max_send_wr = 4,
                  .max_recv_wr = 1,
                  .max_send_sge = 1,
                  .max_recv_sge = 1,
                  .max_inline_data = bytes};
    ibv_qp* qp = ibv_create_qp(pd, &wanted);
    if (qp == nullptr) continue;
    ibv_destroy_qp(qp);
    return wanted.cap.max_inline_data;
  }
  return 0;
}

void TryOut(ibv_context* context, DeviceLimits& limits) {
  limits.dmabuf_unknown = true;
  ibv_pd* pd = ibv_alloc_pd(context);
  if (pd == nullptr) return;
  const absl::Cleanup free_pd = [pd] { ibv_dealloc_pd(pd); };
  ibv_mr* mr = ibv_reg_dmabuf_mr(pd, 0, 4096, 0, -1, IBV_ACCESS_LOCAL_WRITE);
  ReadDmabufAnswer(mr == nullptr ? errno : 0, limits);
  if (mr != nullptr) ibv_dereg_mr(mr);
  ibv_cq* cq = ibv_create_cq(context, 8, nullptr, nullptr, 0);
  if (cq == nullptr) return;
  const absl::Cleanup free_cq = [cq] { ibv_destroy_cq(cq); };
  limits.inline_bytes_hint = TryInline(pd, cq);
}

}  // namespace

DeviceLimits LimitsOf(const ibv_device_attr& attributes, uint64_t message_bytes) {
  DeviceLimits limits;
  limits.qp_wr_max = Positive(attributes.max_qp_wr);
  limits.cq_entries_max = Positive(attributes.max_cqe);
  limits.srq_max = Positive(attributes.max_srq);
  limits.srq_wr_max = limits.srq_max == 0 ? 0 : Positive(attributes.max_srq_wr);
  if (limits.srq_wr_max == 0) limits.srq_max = 0;
  limits.sge_max = Positive(attributes.max_sge);
  // Some drivers leave it out; READs then take as many as SENDs.
  limits.sge_rd_max = attributes.max_sge_rd > 0
                          ? std::min(Positive(attributes.max_sge_rd), limits.sge_max)
                          : limits.sge_max;
  limits.read_depth_initiator = std::min(Positive(attributes.max_qp_init_rd_atom), kReadDepthMax);
  limits.read_depth_responder = std::min(Positive(attributes.max_qp_rd_atom), kReadDepthMax);
  limits.qp_max = Positive(attributes.max_qp);
  limits.mr_max = Positive(attributes.max_mr);
  limits.windows_2b =
      (attributes.device_cap_flags & IBV_DEVICE_MEM_WINDOW_TYPE_2B) != 0 && attributes.max_mw > 0;
  limits.mw_max = limits.windows_2b ? Positive(attributes.max_mw) : 0;
  limits.mr_bytes_max = attributes.max_mr_size;
  limits.message_bytes_max = message_bytes;
  return limits;
}

absl::StatusOr<DeviceLimits> ProbeLimits(ibv_context* context) {
  ibv_device_attr attributes{};
  absl::Status status = ErrnoReturned("ibv_query_device", ibv_query_device(context, &attributes));
  if (!status.ok()) return status;
  uint64_t message_bytes = UINT64_MAX;
  for (uint8_t port = 1; port <= attributes.phys_port_cnt; ++port) {
    ibv_port_attr facts{};
    status = ErrnoReturned("ibv_query_port", ibv_query_port(context, port, &facts));
    if (!status.ok()) return status;
    message_bytes = std::min<uint64_t>(message_bytes, facts.max_msg_sz);
  }
  DeviceLimits limits = LimitsOf(attributes, message_bytes == UINT64_MAX ? 0 : message_bytes);
  TryOut(context, limits);
  return limits;
}

void ReadDmabufAnswer(int error, DeviceLimits& limits) {
  // The kernel looks at the descriptor last: it complains of that one only if it knows the rest.
  limits.dmabuf = error == EBADF;
  const bool refused =
      error == EOPNOTSUPP || error == ENOSYS || error == EPROTONOSUPPORT || error == ENOTTY;
  limits.dmabuf_unknown = !limits.dmabuf && !refused;
}

}  // namespace verbena::fabric::verbs
