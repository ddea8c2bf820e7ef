#pragma once
// verbs::DeviceLimits: what one RDMA device can do, as plain numbers. Includes no verbs header, so
// that everyone may see it.
#include <cstdint>

namespace verbena::fabric::verbs {

// More would make work requests so large that fewer of them fit; frames of that size gain nothing.
inline constexpr uint32_t kInlineBytesAsked = 512;

// As the device says, brought into the range that its own interfaces can carry: never negative,
// READ depths at most 255, 0 where it has no such thing. Upper limits of the device; a process may
// get less.
struct DeviceLimits {
  uint32_t qp_wr_max = 0;       // work requests in one queue of a QP
  uint32_t cq_entries_max = 0;  // of one CQ
  uint32_t srq_max = 0;         // 0: no SRQs
  uint32_t srq_wr_max = 0;
  uint32_t sge_max = 0;               // pieces of a SEND or a receive
  uint32_t sge_rd_max = 0;            // local pieces of a READ
  uint32_t read_depth_initiator = 0;  // READs under way that one QP may have sent
  uint32_t read_depth_responder = 0;  // and may answer
  uint32_t qp_max = 0;
  uint32_t mr_max = 0;
  uint32_t mw_max = 0;
  // What a QP with one send piece was granted that asked for kInlineBytesAsked or less. Others may
  // get less: ask, and read back.
  uint32_t inline_bytes_hint = 0;
  bool windows_2b = false;         // memory windows of type 2B, bound by work requests
  bool dmabuf = false;             // ibv_reg_dmabuf_mr is there
  bool dmabuf_unknown = false;     // asking for it gave an answer that says neither
  uint64_t mr_bytes_max = 0;       // one registration
  uint64_t message_bytes_max = 0;  // one SEND or READ: the least of the device's ports
};

}  // namespace verbena::fabric::verbs
