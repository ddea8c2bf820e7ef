#include "rpc/fabric/verbs/offer.h"

#include <bit>
#include <cstddef>
#include <cstring>

#include "absl/strings/str_cat.h"

namespace verbena::fabric::verbs {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

constexpr char kLinkMagic[] = "VRD1";
constexpr char kLaneMagic[] = "VRL1";
constexpr size_t kHeaderBytes = 16;
constexpr size_t kEndBytes = 40;
constexpr size_t kBlobBytes = kHeaderBytes + kEndBytes;
constexpr uint32_t kNumberEnd = 1 << 24;
constexpr uint8_t kRoce = 1;
constexpr uint8_t kGrh = 2;

template <class T>
void Put(std::string& to, size_t at, T value) {
  memcpy(to.data() + at, &value, sizeof value);
}

template <class T>
T Get(absl::string_view from, size_t at) {
  T value;
  memcpy(&value, from.data() + at, sizeof value);
  return value;
}

void PutEnd(std::string& to, const QueuePairEnd& end) {
  Put(to, kHeaderBytes, end.qp_number);
  Put(to, kHeaderBytes + 4, end.psn);
  Put(to, kHeaderBytes + 8, end.gid);
  Put(to, kHeaderBytes + 24, end.lid);
  Put(to, kHeaderBytes + 26, end.mtu);
  const auto kind = end.ethernet ? static_cast<uint8_t>(kRoce | end.roce_version << 4)
                                 : static_cast<uint8_t>(end.grh ? kGrh : 0);
  Put(to, kHeaderBytes + 27, kind);
  Put(to, kHeaderBytes + 28, end.read_depth_out);
  Put(to, kHeaderBytes + 29, end.read_depth_in);
}

absl::Status Bad(absl::string_view what, uint64_t value) {
  return absl::InvalidArgumentError(absl::StrCat("verbs: an offer with ", what, " ", value));
}

absl::StatusOr<QueuePairEnd> GetEnd(absl::string_view from) {
  QueuePairEnd end;
  end.qp_number = Get<uint32_t>(from, kHeaderBytes);
  end.psn = Get<uint32_t>(from, kHeaderBytes + 4);
  end.gid = Get<std::array<uint8_t, 16>>(from, kHeaderBytes + 8);
  end.lid = Get<uint16_t>(from, kHeaderBytes + 24);
  end.mtu = Get<uint8_t>(from, kHeaderBytes + 26);
  const auto kind = Get<uint8_t>(from, kHeaderBytes + 27);
  end.ethernet = (kind & kRoce) != 0;
  end.grh = (kind & kGrh) != 0;
  end.roce_version = kind >> 4;
  end.read_depth_out = Get<uint8_t>(from, kHeaderBytes + 28);
  end.read_depth_in = Get<uint8_t>(from, kHeaderBytes + 29);
  if (end.qp_number == 0 || end.qp_number >= kNumberEnd) return Bad("queue pair", end.qp_number);
  if (end.psn >= kNumberEnd) return Bad("packet number", end.psn);
  if (end.mtu < 1 || end.mtu > 5) return Bad("MTU", end.mtu);
  if ((kind & 0x0c) != 0 || end.roce_version > 2) return Bad("link layer", kind);
  if (end.ethernet != (end.roce_version != 0)) return Bad("link layer", kind);
  if (end.ethernet && end.grh) return Bad("link layer", kind);
  return end;
}

absl::Status CheckBlob(absl::string_view blob, absl::string_view magic) {
  if (blob.size() != kBlobBytes) return Bad("bytes", blob.size());
  if (blob.substr(0, magic.size()) != magic) return Bad("magic", Get<uint32_t>(blob, 0));
  return absl::OkStatus();
}

}  // namespace

std::string LinkOfferBlob(const LinkOffer& offer) {
  std::string blob(kBlobBytes, '\0');
  memcpy(blob.data(), kLinkMagic, 4);
  Put(blob, 4, offer.frame_bytes);
  Put(blob, 8, offer.window_frames);
  PutEnd(blob, offer.end);
  return blob;
}

absl::StatusOr<LinkOffer> ParseLinkOffer(absl::string_view blob) {
  absl::Status status = CheckBlob(blob, kLinkMagic);
  if (!status.ok()) return status;
  absl::StatusOr<QueuePairEnd> end = GetEnd(blob);
  if (!end.ok()) return end.status();
  return LinkOffer{Get<uint32_t>(blob, 4), Get<uint32_t>(blob, 8), *end};
}

std::string LaneOfferBlob(const LaneOffer& offer) {
  std::string blob(kBlobBytes, '\0');
  memcpy(blob.data(), kLaneMagic, 4);
  Put(blob, 4, offer.index);
  Put(blob, 8, offer.generation);
  PutEnd(blob, offer.end);
  return blob;
}

absl::StatusOr<LaneOffer> ParseLaneOffer(absl::string_view blob) {
  absl::Status status = CheckBlob(blob, kLaneMagic);
  if (!status.ok()) return status;
  absl::StatusOr<QueuePairEnd> end = GetEnd(blob);
  if (!end.ok()) return end.status();
  return LaneOffer{Get<uint8_t>(blob, 4), Get<uint32_t>(blob, 8), *end};
}

}  // namespace verbena::fabric::verbs
