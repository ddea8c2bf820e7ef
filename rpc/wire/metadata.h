#pragma once
// Metadata of a call on the wire: a section of pairs, each {u32 key bytes, u32 value bytes, key,
// value}, in order, unpadded.
#include <cstddef>
#include <cstdint>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace verbena::wire {

using MetadataPair = std::pair<absl::string_view, absl::string_view>;
using MetadataPairs = absl::InlinedVector<MetadataPair, 8>;

// Bytes of the pairs, without a section header.
size_t MetadataBytes(absl::Span<const MetadataPair> pairs);
// Writes exactly MetadataBytes(pairs) and returns the end.
std::byte* EncodeMetadata(absl::Span<const MetadataPair> pairs, std::byte* to);
// Views into `content`. INVALID_ARGUMENT: truncated, a key that is empty or not [0-9a-z_.-], or
// more than limits::kMetadataBytesMax.
absl::Status DecodeMetadata(absl::Span<const std::byte> content, uint32_t count,
                            MetadataPairs& pairs);

}  // namespace verbena::wire
