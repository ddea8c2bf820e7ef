#pragma once
// What one end of a shm link tells the other when it is set up, and the proofs that each READ way
// works.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena::fabric::shm {

using Nonce = std::array<std::byte, 16>;
Nonce RandomNonce();

// On one host: the machine's own byte order. Descriptors beside it: the segment's memfd, the bell's
// eventfd.
struct OfferBlob {
  uint32_t magic = kMagic;
  uint32_t version = kVersion;
  uint32_t ring_lines = 0;
  uint32_t leases_max = 0;
  uint64_t nonce_address =
      0;          // of the same nonce in the owner's private memory, for process_vm_readv
  Nonce nonce{};  // the one in the segment's control page

  static constexpr uint32_t kMagic = 0x4d485356;  // "VSHM"
  static constexpr uint32_t kVersion = 2;
};

std::string Encode(const OfferBlob& offer);
// INVALID_ARGUMENT names what is wrong.
absl::StatusOr<OfferBlob> Decode(absl::string_view blob);
// OK when `fd` is an eventfd that does not block. INVALID_ARGUMENT else.
absl::Status CheckBell(int fd);

}  // namespace verbena::fabric::shm
