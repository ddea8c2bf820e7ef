#pragma once
// A status on the wire: u32 code, u32 message bytes, message; then details, each {u32 url bytes,
// u32 value bytes, url, value}: the payloads of an absl::Status.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"

namespace verbena::wire {

// A message longer than this is cut; details that do not fit beside it are left out.
inline constexpr size_t kStatusBytesMax = 16 << 10;

size_t StatusBytes(const absl::Status& status);
// Writes exactly StatusBytes(status), sets the number of details, returns the end.
std::byte* EncodeStatus(const absl::Status& status, std::byte* to, size_t& details);
// INVALID_ARGUMENT: truncated or over the limit. An unknown code becomes UNKNOWN.
absl::Status DecodeStatus(absl::Span<const std::byte> content, uint32_t details,
                          absl::Status& status);

}  // namespace verbena::wire
