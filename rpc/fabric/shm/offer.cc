#include "rpc/fabric/shm/offer.h"

#include <fcntl.h>
#include <sys/random.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/shm/segment.h"

namespace verbena::fabric::shm {

Nonce RandomNonce() {
  Nonce nonce;
  VERBENA_CHECK(getrandom(nonce.data(), nonce.size(), 0) == static_cast<ssize_t>(nonce.size()));
  return nonce;
}

std::string Encode(const OfferBlob& offer) {
  return std::string(reinterpret_cast<const char*>(&offer), sizeof offer);
}

absl::StatusOr<OfferBlob> Decode(absl::string_view blob) {
  OfferBlob offer;
  if (blob.size() != sizeof offer) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: an offer of ", blob.size(), " bytes, needs ", sizeof offer));
  }
  memcpy(&offer, blob.data(), sizeof offer);
  if (offer.magic != OfferBlob::kMagic) {
    return absl::InvalidArgumentError(absl::StrCat("shm: an offer that begins with 0x",
                                                   absl::Hex(offer.magic), ", not 0x",
                                                   absl::Hex(OfferBlob::kMagic)));
  }
  if (offer.version != OfferBlob::kVersion) {
    return absl::InvalidArgumentError(absl::StrCat("shm: an offer of version ", offer.version,
                                                   ", this process has ", OfferBlob::kVersion));
  }
  if (offer.ring_lines != kRingLines || offer.leases_max != kLeasesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("shm: rings of ", offer.ring_lines, " lines and ", offer.leases_max,
                     " leases, this process has ", kRingLines, " and ", kLeasesMax));
  }
  return offer;
}

absl::Status CheckBell(int fd) {
  char link[64] = {};
  char path[32];
  snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
  const ssize_t n = readlink(path, link, sizeof link - 1);
  if (n < 0 || strstr(link, "[eventfd]") == nullptr) {
    return absl::InvalidArgumentError("shm: the peer's bell is not an eventfd");
  }
  const int flags = fcntl(fd, F_GETFL);
  if (flags < 0 || (flags & O_NONBLOCK) == 0) {
    return absl::InvalidArgumentError("shm: the peer's bell can block");
  }
  return absl::OkStatus();
}

}  // namespace verbena::fabric::shm
