#include "rpc/wire/payload_table.h"

#include "absl/strings/str_cat.h"
#include "rpc/wire/bad_length.h"
#include "rpc/wire/frame.h"

namespace verbena::wire {
namespace {

constexpr size_t kPieceBytes = 16;
constexpr size_t kKeyBytes = sizeof(Key);

absl::Status CheckShape(uint8_t pieces, uint8_t lanes, const PayloadEntry& entry) {
  if (pieces > limits::kPiecesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload of ", pieces, " pieces; the limit is ", limits::kPiecesMax));
  }
  if (lanes > limits::kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a payload on ", lanes, " lanes; the limit is ", limits::kLanesMax));
  }
  const bool empty = pieces == 0;
  if (empty != (lanes == 0) || empty != (entry.bytes == 0) || empty != (entry.lease == 0)) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a payload of ", entry.bytes, " bytes with ", pieces, " pieces, ", lanes,
        " lanes and lease ", entry.lease, ": an empty one has none of them, others have all"));
  }
  return absl::OkStatus();
}

// Pieces must add up to the payload's bytes, and none may pass the end of 64 bits.
absl::Status CheckPieces(const PayloadEntry& entry) {
  uint64_t left = entry.bytes;
  for (const PayloadPiece& piece : entry.pieces) {
    if (piece.bytes == 0 || piece.bytes > left || piece.offset > UINT64_MAX - piece.bytes) {
      return absl::InvalidArgumentError(absl::StrCat("a piece of ", piece.bytes, " bytes at ",
                                                     piece.offset, " does not fit a payload of ",
                                                     entry.bytes));
    }
    left -= piece.bytes;
  }
  if (left != 0)
    return absl::InvalidArgumentError(
        absl::StrCat("pieces lack ", left, " bytes of their payload of ", entry.bytes));
  return absl::OkStatus();
}

}  // namespace

size_t EntryBytes(const PayloadEntry& entry) {
  return kEntryFixedBytes + entry.pieces.size() * kPieceBytes + entry.keys.size() * kKeyBytes;
}

std::byte* EncodeEntry(const PayloadEntry& entry, std::byte* to) {
  Store(to, entry.ticket);
  Store(to + 8, entry.lease);
  Store(to + 16, entry.bytes);
  Store(to + 24, uint64_t{entry.device_kind} | uint64_t{entry.pieces.size()} << 8 |
                     uint64_t{entry.device_index} << 16 | uint64_t{entry.lanes} << 32 |
                     uint64_t{entry.key_generation} << 40);
  to += kEntryFixedBytes;
  for (const PayloadPiece& piece : entry.pieces) {
    Store(to, piece.offset);
    Store(to + 8, piece.bytes);
    to += kPieceBytes;
  }
  for (const Key& key : entry.keys) {
    std::memcpy(to, key.data(), kKeyBytes);
    to += kKeyBytes;
  }
  return to;
}

absl::Status DecodeEntry(absl::Span<const std::byte>& content, PayloadEntry& entry) {
  if (content.size() < kEntryFixedBytes)
    return Truncated("an entry of a payload table", kEntryFixedBytes, content.size());
  const std::byte* at = content.data();
  entry.ticket = Load<uint64_t>(at);
  entry.lease = Load<uint64_t>(at + 8);
  entry.bytes = Load<uint64_t>(at + 16);
  entry.device_kind = Load<uint8_t>(at + 24);
  const uint8_t pieces = Load<uint8_t>(at + 25);
  entry.device_index = Load<uint16_t>(at + 26);
  entry.lanes = Load<uint8_t>(at + 28);
  entry.key_generation = Load<uint32_t>(at + 28) >> 8;
  absl::Status status = CheckShape(pieces, entry.lanes, entry);
  if (!status.ok()) return status;
  const size_t keys = size_t{pieces} * entry.lanes;
  const size_t bytes = kEntryFixedBytes + pieces * kPieceBytes + keys * kKeyBytes;
  if (content.size() < bytes)
    return Truncated("an entry of a payload table", bytes, content.size());
  at += kEntryFixedBytes;
  entry.pieces.resize(pieces);
  for (PayloadPiece& piece : entry.pieces) {
    piece = {Load<uint64_t>(at), Load<uint64_t>(at + 8)};
    at += kPieceBytes;
  }
  entry.keys.resize(keys);
  for (Key& key : entry.keys) {
    std::memcpy(key.data(), at, kKeyBytes);
    at += kKeyBytes;
  }
  content.remove_prefix(bytes);
  return CheckPieces(entry);
}

size_t TableBytes(absl::Span<const PayloadEntry> table) {
  size_t bytes = 0;
  for (const PayloadEntry& entry : table) bytes += EntryBytes(entry);
  return bytes;
}

std::byte* EncodeTable(absl::Span<const PayloadEntry> table, std::byte* to) {
  for (const PayloadEntry& entry : table) to = EncodeEntry(entry, to);
  return to;
}

absl::Status DecodeTable(absl::Span<const std::byte> content, uint32_t count, PayloadTable& table) {
  table.clear();
  if (count > limits::kPayloadsMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(count, " payloads; the limit is ", limits::kPayloadsMax));
  }
  // Before anything is allocated for them.
  if (content.size() / kEntryFixedBytes < count)
    return Truncated("a payload table", uint64_t{count} * kEntryFixedBytes, content.size());
  table.resize(count);
  for (PayloadEntry& entry : table) {
    absl::Status status = DecodeEntry(content, entry);
    if (!status.ok()) return status;
  }
  if (!content.empty()) return LeftOver("the payload table", content.size());
  return absl::OkStatus();
}

}  // namespace verbena::wire
