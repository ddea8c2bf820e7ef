#pragma once
// What the two ends of a link or a bulk lane tell each other to bring their queue pairs up: the
// blobs of Prepare and PrepareLane. Pure encoding; the fields are little endian. Includes no verbs
// header.
//
// An end, 40 bytes:
//   0  u32  queue pair number, 24 bits, never 0
//   4  u32  first packet number, 24 bits
//   8  16   GID
//   24 u16  LID; 0 on RoCE
//   26 u8   active MTU, 1 (256) to 5 (4096)
//   27 u8   bit 0: RoCE; bits 4-7 its version, 1 or 2, else 0. Bit 1: InfiniBand, and packets must
//           have a GRH; never with bit 0
//   28 u8   READs that this end may have under way
//   29 u8   READs that it answers at a time
//   30 u16  0
//   32 u64  0
// A link's blob: "VRD1", u32 frame bytes, u32 window in frames, u32 0, an end: 56 bytes.
// A lane's: "VRL1", u8 index, 3 x 0, u32 generation, u32 0, an end: 56 bytes.
// Another length, magic, version or a value out of range is INVALID_ARGUMENT, naming the value.
#include <array>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena::fabric::verbs {

// What a link's last word carries: a SEND of no bytes with this immediate value. No frame has one.
inline constexpr uint32_t kByeWord = 0x56425945;

struct QueuePairEnd {
  uint32_t qp_number = 0;
  uint32_t psn = 0;
  std::array<uint8_t, 16> gid{};
  uint16_t lid = 0;
  uint8_t mtu = 0;  // as ibv_mtu
  bool ethernet = false;
  uint8_t roce_version = 0;
  bool grh = false;  // an InfiniBand port that demands it
  uint8_t read_depth_out = 0;
  uint8_t read_depth_in = 0;
  friend bool operator==(const QueuePairEnd&, const QueuePairEnd&) = default;
};

struct LinkOffer {
  uint32_t frame_bytes = 0;
  uint32_t window_frames = 0;
  QueuePairEnd end;
};

struct LaneOffer {
  uint8_t index = 0;
  uint32_t generation = 0;
  QueuePairEnd end;
};

std::string LinkOfferBlob(const LinkOffer& offer);
absl::StatusOr<LinkOffer> ParseLinkOffer(absl::string_view blob);
std::string LaneOfferBlob(const LaneOffer& offer);
absl::StatusOr<LaneOffer> ParseLaneOffer(absl::string_view blob);

}  // namespace verbena::fabric::verbs
