#pragma once
// Records other than requests and replies. Their fixed parts are checked by CheckFrame; the
// functions here check the rest. Writers fill a buffer of the bytes that the matching ...Bytes
// function gives.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/wire/frame.h"
#include "rpc/wire/payload_table.h"

namespace verbena::wire {

// CANCEL, READY, PROVED, GOAWAY, GOAWAY_ACK: a header and its word. 8 bytes.
void WriteBare(RecordType type, uint32_t word, std::byte* to);

// METHOD: word = the link's number of it (1, 2, ...); flags = padding; path.
size_t MethodRecordBytes(absl::string_view path);
void WriteMethod(uint32_t number, absl::string_view path, std::byte* to);
absl::StatusOr<absl::string_view> ReadMethodPath(absl::Span<const std::byte> record);

// RELEASE (the reader is done) and RECALL (the owner wants it back): word = kWholeMessage or 0;
// then one u64 lease. kWholeMessage: that lease and all others of the same message. 16 bytes.
inline constexpr uint32_t kWholeMessage = 1;
inline constexpr size_t kLeaseRecordBytes = 16;
void WriteLease(RecordType type, uint64_t lease, bool whole_message, std::byte* to);

// PATTERN: u64 seed, then one payload entry of kPatternBytes.
inline constexpr size_t kPatternBytes = 64;
size_t PatternRecordBytes(const PayloadEntry& entry);
void WritePattern(uint64_t seed, const PayloadEntry& entry, std::byte* to);
struct Pattern {
  uint64_t seed = 0;
  PayloadEntry entry;
};
absl::StatusOr<Pattern> ReadPattern(absl::Span<const std::byte> record);
// What the memory behind a PATTERN holds.
void FillPattern(uint64_t seed, absl::Span<std::byte> to);

// LANE_DOWN, LANE_OFFER, LANE_READY: word = index | sender's role << 8; u32 generation, u32 bytes
// of the blob (LANE_DOWN: the cause, no blob); blob, padded.
struct LaneRecord {
  uint8_t index = 0;
  bool sender_owns = false;  // the sender is the owner's end of the lane
  uint32_t generation = 0;
  uint32_t cause = 0;
  absl::string_view blob;
};
size_t LaneRecordBytes(const LaneRecord& lane);
void WriteLane(RecordType type, const LaneRecord& lane, std::byte* to);
absl::StatusOr<LaneRecord> ReadLane(absl::Span<const std::byte> record);

// LEASE_KEYS: word = lane index; u32 lane generation, u32 count; count x { u64 lease, key }.
struct LeaseKey {
  uint64_t lease = 0;
  Key key{};
};
struct LeaseKeys {
  uint8_t lane = 0;
  uint32_t generation = 0;
  std::vector<LeaseKey> keys;
};
inline constexpr size_t kLeaseKeyBytes = 40;
size_t LeaseKeysBytes(size_t count);
void WriteLeaseKeys(const LeaseKeys& keys, std::byte* to);
absl::StatusOr<LeaseKeys> ReadLeaseKeys(absl::Span<const std::byte> record);

}  // namespace verbena::wire
