#pragma once
// What follows the fixed header of a request (16 bytes) or a reply (8 bytes): optional sections
// behind flags, then the body up to the record's end less its padding. In this order:
//
//   wide timeout    u64 microseconds                                    requests only, kFlagExtra
//   status          u32 code, u32 message bytes, message, details       replies only, kFlagExtra
//   metadata        kFlagMetadata
//   payload table   kFlagTable; with kFlagBodyLeased its first entry is the body
//   body
//
// A section begins with {u32 bytes of its content, u32 count of its items} and is padded to 8. With
// kFlagHeadLeased the record holds one payload entry and nothing else: the sections and the body
// lie in the memory it names, to be READ first.
#include <cstddef>
#include <cstdint>

#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/metadata.h"
#include "rpc/wire/payload_table.h"

namespace verbena::wire {

inline constexpr uint8_t kPaddingMask = 0x07;  // bytes after the body, up to a multiple of 8
inline constexpr uint8_t kFlagMetadata = 0x08;
inline constexpr uint8_t kFlagTable = 0x10;
inline constexpr uint8_t kFlagExtra = 0x20;
inline constexpr uint8_t kFlagBodyLeased = 0x40;
inline constexpr uint8_t kFlagHeadLeased = 0x80;

inline constexpr uint32_t kRequestHeaderBytes = 16;
inline constexpr uint32_t kReplyHeaderBytes = 8;
inline constexpr size_t kSectionHeaderBytes = 8;

enum class MessageKind : uint8_t { kRequest, kReply };

// A message to be encoded; borrows everything.
struct MessageParts {
  uint64_t wide_timeout_us = 0;          // requests: 0 = the header's field says it
  const absl::Status* status = nullptr;  // replies: null = OK
  absl::Span<const MetadataPair> metadata;
  absl::Span<const PayloadEntry> table;
  bool body_leased = false;
  absl::Span<const std::byte> body;
};

// Exact bytes after the fixed header, without the final padding.
size_t SectionsBytes(const MessageParts& parts);
// Writes exactly that many and returns the flags, padding not included.
uint8_t EncodeSections(const MessageParts& parts, std::byte* to);

// What was decoded; views into the bytes that were given.
struct MessageView {
  uint64_t wide_timeout_us = 0;
  absl::Status status;
  MetadataPairs metadata;
  PayloadTable table;
  bool body_leased = false;
  absl::Span<const std::byte> body;
};
// `content` is what follows the fixed header, its padding cut off. Any bytes are allowed.
// INVALID_ARGUMENT: this message is bad; the frame it came in need not be.
absl::Status DecodeSections(MessageKind kind, uint8_t flags, absl::Span<const std::byte> content,
                            MessageView& view);

}  // namespace verbena::wire
