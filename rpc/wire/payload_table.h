#pragma once
// The table of payloads that travel beside a message. One entry on the wire:
//
//   u64 ticket   what the descriptor in the message says; 0 for the message's own body
//   u64 lease    the owner's name of the lease; 0 for an empty payload
//   u64 bytes
//   u8  kind, u8 pieces (0-64), u16 device index, u8 lanes (1-4 with pieces, else 0), u24
//   generation of the keys' lane pieces x { u64 offset within its lease's key, u64 bytes } pieces x
//   lanes x { 4 x u64 key }
//
// Everything is checked for overflow and against the limits when it is decoded; whether a piece
// lies inside its lease is the owner's fabric's to enforce.
#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/base/limits.h"

namespace verbena::wire {

using Key = std::array<uint64_t, 4>;
inline constexpr uint32_t kKeyGenerationMask = 0xffffff;

struct PayloadPiece {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};

struct PayloadEntry {
  uint64_t ticket = 0;
  uint64_t lease = 0;
  uint64_t bytes = 0;
  uint8_t device_kind = 0;
  uint16_t device_index = 0;
  uint8_t lanes = 0;
  uint32_t key_generation =
      0;  // of the lane, 24 bits: keys of an older lane are not used on its successor
  absl::InlinedVector<PayloadPiece, 1> pieces;
  absl::InlinedVector<Key, 1> keys;  // keys[piece * lanes + lane]
};
using PayloadTable = std::vector<PayloadEntry>;

inline constexpr size_t kEntryFixedBytes = 32;
size_t EntryBytes(const PayloadEntry& entry);
// Writes exactly EntryBytes(entry) and returns the end.
std::byte* EncodeEntry(const PayloadEntry& entry, std::byte* to);
// Takes one entry from the front of `content`. INVALID_ARGUMENT says what is wrong.
absl::Status DecodeEntry(absl::Span<const std::byte>& content, PayloadEntry& entry);

size_t TableBytes(absl::Span<const PayloadEntry> table);
std::byte* EncodeTable(absl::Span<const PayloadEntry> table, std::byte* to);
// The whole of `content` must be `count` entries.
absl::Status DecodeTable(absl::Span<const std::byte> content, uint32_t count, PayloadTable& table);

}  // namespace verbena::wire
