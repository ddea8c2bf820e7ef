#include "rpc/fabric/verbs/sizes.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"

namespace verbena::fabric::verbs {
namespace {

// Of each kind on one link: a lane per direction, and another on its way down.
constexpr uint32_t kBulkPairsPerLink = 4;
// What one queue pair may have under way of READs; more gains nothing between two hosts.
constexpr uint32_t kReadDepthMax = 16;
constexpr uint32_t kSgeMax = 16;

}  // namespace

absl::StatusOr<Sizes> PlanSizes(const DeviceLimits& device, uint32_t links_wanted) {
  Sizes sizes;
  sizes.receives_per_link = limits::kVerbsWindowFrames + 1;
  sizes.control_work = std::min(limits::kVerbsControlWorkMax, device.qp_wr_max);
  sizes.bulk_work = std::min(limits::kVerbsBulkWorkMax, device.qp_wr_max);
  if (sizes.control_work < limits::kVerbsWindowFrames + 2 || sizes.bulk_work < 4) {
    return absl::ResourceExhaustedError(absl::StrCat("verbs: queues of ", device.qp_wr_max,
                                                     " work requests; a link needs ",
                                                     limits::kVerbsWindowFrames + 2));
  }
  if (device.read_depth_initiator == 0 || device.read_depth_responder == 0) {
    return absl::ResourceExhaustedError("verbs: the device allows no READs under way");
  }
  sizes.srq = device.srq_max > 0 && device.srq_wr_max >= sizes.receives_per_link + kReceivesSpare;
  sizes.receives_spare = sizes.srq ? kReceivesSpare : 0;
  // A receive of each posted buffer and a completion of each send, good or flushed.
  const uint32_t control_each = sizes.receives_per_link + sizes.control_work;
  const uint32_t bulk_each = kBulkPairsPerLink * sizes.bulk_work;
  const uint32_t spare = std::min(sizes.receives_spare, device.cq_entries_max);
  uint32_t links =
      std::min({links_wanted, (device.cq_entries_max - spare) / control_each,
                device.cq_entries_max / bulk_each, device.qp_max / (1 + kBulkPairsPerLink)});
  if (sizes.srq) {
    links = std::min(links, (device.srq_wr_max - spare) / sizes.receives_per_link);
  }
  if (links == 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("verbs: no room for a link: the device has ", device.qp_max,
                     " queue pairs and CQs of ", device.cq_entries_max, " entries; a link needs ",
                     1 + kBulkPairsPerLink, " and ", std::max(control_each, bulk_each)));
  }
  sizes.links_max = links;
  sizes.srq_entries = sizes.srq ? links * sizes.receives_per_link + spare : 0;
  sizes.control_cq_entries = links * control_each + spare;
  sizes.bulk_cq_entries = links * bulk_each;
  sizes.inline_bytes = std::min(kInlineBytes, device.inline_bytes_hint);
  sizes.sge = std::clamp<uint32_t>(std::min(device.sge_max, device.sge_rd_max), 1, kSgeMax);
  sizes.read_depth_out = std::min(device.read_depth_initiator, kReadDepthMax);
  sizes.read_depth_in = std::min(device.read_depth_responder, kReadDepthMax);
  return sizes;
}

}  // namespace verbena::fabric::verbs
