// What a peer says of its queue pairs before they are brought up: offers of links and lanes. What
// is taken must come out again as it went in.
#include <cstddef>
#include <cstdint>

#include "rpc/base/check.h"
#include "rpc/fabric/verbs/offer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace verbena::fabric::verbs;
  const absl::string_view blob(reinterpret_cast<const char*>(data), size);
  const absl::StatusOr<LinkOffer> link = ParseLinkOffer(blob);
  if (link.ok()) {
    const absl::StatusOr<LinkOffer> again = ParseLinkOffer(LinkOfferBlob(*link));
    VERBENA_CHECK(again.ok() && again->end == link->end);
    VERBENA_CHECK(link->end.qp_number != 0 && link->end.mtu >= 1 && link->end.mtu <= 5);
  }
  const absl::StatusOr<LaneOffer> lane = ParseLaneOffer(blob);
  if (lane.ok()) {
    const absl::StatusOr<LaneOffer> again = ParseLaneOffer(LaneOfferBlob(*lane));
    VERBENA_CHECK(again.ok() && again->end == lane->end && again->index == lane->index);
  }
  return 0;
}
