#include "rpc/wire/control.h"

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/wire/bad_length.h"

namespace verbena::wire {
namespace {

constexpr size_t kSecondWordBytes = 8;
// In a lane record's word, beside the lane.
constexpr uint32_t kSenderOwns = 0x100;

void WriteHeader(RecordType type, size_t bytes, uint8_t flags, uint32_t word, std::byte* to) {
  VERBENA_DCHECK(bytes % 8 == 0 && bytes <= kRecordBytesMax, "record of ", bytes);
  Store(to, RecordHeader{type, flags, static_cast<uint16_t>(bytes), word});
}

// `text` at `at`, zeroes up to `end`.
void WritePadded(absl::string_view text, std::byte* at, const std::byte* end) {
  if (!text.empty()) std::memcpy(at, text.data(), text.size());
  std::memset(at + text.size(), 0, static_cast<size_t>(end - at) - text.size());
}

}  // namespace

void WriteBare(RecordType type, uint32_t word, std::byte* to) {
  WriteHeader(type, kRecordHeaderBytes, 0, word, to);
}

size_t MethodRecordBytes(absl::string_view path) {
  return kRecordHeaderBytes + RoundUp8(path.size());
}

void WriteMethod(uint32_t number, absl::string_view path, std::byte* to) {
  const size_t bytes = MethodRecordBytes(path);
  const uint8_t padding = static_cast<uint8_t>(RoundUp8(path.size()) - path.size());
  WriteHeader(RecordType::kMethod, bytes, padding, number, to);
  WritePadded(path, to + kRecordHeaderBytes, to + bytes);
}

absl::StatusOr<absl::string_view> ReadMethodPath(absl::Span<const std::byte> record) {
  const uint8_t padding = Load<RecordHeader>(record.data()).flags;
  const absl::Span<const std::byte> path = record.subspan(kRecordHeaderBytes);
  if (padding > 7 || padding >= path.size())
    return absl::InvalidArgumentError(absl::StrCat("a METHOD record with ", padding,
                                                   " bytes of padding in ", path.size(),
                                                   "; it is at most 7 and behind a path"));
  return absl::string_view(reinterpret_cast<const char*>(path.data()), path.size() - padding);
}

void WriteLease(RecordType type, uint64_t lease, bool whole_message, std::byte* to) {
  WriteHeader(type, kLeaseRecordBytes, 0, whole_message ? kWholeMessage : 0, to);
  Store(to + kRecordHeaderBytes, lease);
}

size_t PatternRecordBytes(const PayloadEntry& entry) {
  return kRecordHeaderBytes + sizeof(uint64_t) + EntryBytes(entry);
}

void WritePattern(uint64_t seed, const PayloadEntry& entry, std::byte* to) {
  WriteHeader(RecordType::kPattern, PatternRecordBytes(entry), 0, 0, to);
  Store(to + kRecordHeaderBytes, seed);
  EncodeEntry(entry, to + kRecordHeaderBytes + sizeof(uint64_t));
}

absl::StatusOr<Pattern> ReadPattern(absl::Span<const std::byte> record) {
  Pattern pattern;
  pattern.seed = Load<uint64_t>(record.data() + kRecordHeaderBytes);
  absl::Span<const std::byte> content = record.subspan(kRecordHeaderBytes + sizeof(uint64_t));
  absl::Status status = DecodeEntry(content, pattern.entry);
  if (!status.ok()) return status;
  if (pattern.entry.bytes != kPatternBytes) {
    return absl::InvalidArgumentError(
        absl::StrCat("a pattern of ", pattern.entry.bytes, " bytes; it has ", kPatternBytes));
  }
  if (!content.empty()) return LeftOver("a pattern", content.size());
  return pattern;
}

void FillPattern(uint64_t seed, absl::Span<std::byte> to) {
  uint64_t state = seed;
  for (std::byte& byte : to) {  // a linear congruential generator is pattern enough
    state = state * 6364136223846793005u + 1442695040888963407u;
    byte = static_cast<std::byte>(state >> 56);
  }
}

size_t LaneRecordBytes(const LaneRecord& lane) {
  return kRecordHeaderBytes + kSecondWordBytes + RoundUp8(lane.blob.size());
}

void WriteLane(RecordType type, const LaneRecord& lane, std::byte* to) {
  const size_t bytes = LaneRecordBytes(lane);
  WriteHeader(type, bytes, 0, lane.index | (lane.sender_owns ? kSenderOwns : 0), to);
  Store(to + kRecordHeaderBytes, lane.generation);
  Store(to + kRecordHeaderBytes + 4,
        type == RecordType::kLaneDown ? lane.cause : static_cast<uint32_t>(lane.blob.size()));
  WritePadded(lane.blob, to + kRecordHeaderBytes + kSecondWordBytes, to + bytes);
}

absl::StatusOr<LaneRecord> ReadLane(absl::Span<const std::byte> record) {
  const RecordHeader header = Load<RecordHeader>(record.data());
  LaneRecord lane;
  lane.index = static_cast<uint8_t>(header.word);
  lane.sender_owns = (header.word & kSenderOwns) != 0;
  lane.generation = Load<uint32_t>(record.data() + kRecordHeaderBytes);
  lane.cause = Load<uint32_t>(record.data() + kRecordHeaderBytes + 4);
  const absl::Span<const std::byte> rest = record.subspan(kRecordHeaderBytes + kSecondWordBytes);
  if (const uint32_t index = header.word & ~kSenderOwns; index >= limits::kLanesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("lane ", index, "; the limit is ", limits::kLanesMax));
  }
  const uint64_t blob_bytes = header.type == RecordType::kLaneDown ? 0 : lane.cause;
  if (RoundUp8(blob_bytes) != rest.size())
    return absl::InvalidArgumentError(absl::StrCat("a lane record with a blob of ", blob_bytes,
                                                   " bytes and room for ", rest.size()));
  lane.blob = absl::string_view(reinterpret_cast<const char*>(rest.data()), blob_bytes);
  return lane;
}

size_t LeaseKeysBytes(size_t count) {
  return kRecordHeaderBytes + kSecondWordBytes + count * kLeaseKeyBytes;
}

void WriteLeaseKeys(const LeaseKeys& keys, std::byte* to) {
  WriteHeader(RecordType::kLeaseKeys, LeaseKeysBytes(keys.keys.size()), 0, keys.lane, to);
  Store(to + kRecordHeaderBytes, keys.generation);
  Store(to + kRecordHeaderBytes + 4, static_cast<uint32_t>(keys.keys.size()));
  to += kRecordHeaderBytes + kSecondWordBytes;
  for (const LeaseKey& key : keys.keys) {
    Store(to, key.lease);
    std::memcpy(to + 8, key.key.data(), sizeof(Key));
    to += kLeaseKeyBytes;
  }
}

absl::StatusOr<LeaseKeys> ReadLeaseKeys(absl::Span<const std::byte> record) {
  LeaseKeys keys;
  const uint32_t lane = Load<RecordHeader>(record.data()).word;
  keys.generation = Load<uint32_t>(record.data() + kRecordHeaderBytes);
  const uint32_t count = Load<uint32_t>(record.data() + kRecordHeaderBytes + 4);
  const std::byte* at = record.data() + kRecordHeaderBytes + kSecondWordBytes;
  const size_t left = record.size() - kRecordHeaderBytes - kSecondWordBytes;
  if (lane >= limits::kLanesMax || left / kLeaseKeyBytes != count || left % kLeaseKeyBytes != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("LEASE_KEYS for lane ", lane, " with ", count, " keys in ", left, " bytes"));
  }
  keys.lane = static_cast<uint8_t>(lane);
  keys.keys.resize(count);
  for (LeaseKey& key : keys.keys) {
    key.lease = Load<uint64_t>(at);
    std::memcpy(key.key.data(), at + 8, sizeof(Key));
    at += kLeaseKeyBytes;
  }
  return keys;
}

}  // namespace verbena::wire
