#pragma once
// What the tcp fabric says on the wire besides frames: offers, the greeting of a bulk connection,
// and READs on it. Pure encoding and decoding; all integers little endian.
//
//   link offer  (4)   magic "VBT1"
//   lane offer  (32)  magic "VBL1" | u16 port, 0 = where HELLO was exchanged | u8 index | u8 0 |
//                     u32 generation | 4 bytes 0 | token (16; zeros from the client)
//   greeting    (20)  magic "VBJ1" | token (16): the first bytes on a bulk connection, which the
//                     client always makes, whichever side owns the memory
//   request     (32)  u32 sequence | u32 bytes | u64 key word 0 | u64 key word 1 | u64 offset
//   answer      (64)  u32 sequence | u32 status | u32 bytes | 52 bytes 0
//                     status OK: `bytes` of data and a trailer follow; else bytes is 0, nothing
//                     follows
//   trailer     (64)  u32 sequence | u32 status | 56 bytes 0: not OK: the lease was revoked, or its
//                     memory vanished, while the data was sent; nothing of it may be used
//
// Answers and trailers are as long as a cache line, so that data lies aligned in the sockets'
// buffers: both copies are faster.
//
// Answers come in the order of the requests, whose sequence counts up from 0. A reader has at most
// kRequestsMax requests unanswered. Anything else is a violation and ends the link.
#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "rpc/base/ids.h"

namespace verbena::fabric::tcp {

inline constexpr size_t kLinkOfferBytes = 4;
inline constexpr size_t kLaneOfferBytes = 32;
inline constexpr size_t kGreetingBytes = 20;
inline constexpr size_t kRequestBytes = 32;
inline constexpr size_t kAnswerBytes = 64;
inline constexpr size_t kTrailerBytes = 64;
// Requests of a lane that wait for their answer. Fewer, and small chunks wait for round trips; each
// costs the owner 32 bytes.
inline constexpr uint32_t kRequestsMax = 64;
// A READ of host memory. Larger, and a revoked lease keeps sending zeros for longer, a lane's turn
// in a tick is longer; smaller, and headers and system calls cost more.
inline constexpr uint32_t kChunkBytes = 256 * 1024;
// The largest READ: between devices. What each copy costs their drivers, 10 us at both ends, is a
// quarter of what the sockets take for the other size; with half of this, a stream takes 3 to 6 %
// longer.
inline constexpr uint32_t kChunkBytesMax = 2048 * 1024;
// What each end of a lane stages for a device: a READ on its way, and one at either side of it.
// Fewer wait for each other; with eight, a stream takes up to 7 % longer, since they do not stay in
// the caches.
inline constexpr uint32_t kStagesUnitBytes = kChunkBytes;
inline constexpr uint32_t kStagesUnits = 3 * kChunkBytesMax / kStagesUnitBytes;

// Names one bulk connection to come. Random, good for one use.
using Token = std::array<uint64_t, 2>;

struct LaneOffer {
  uint16_t port = 0;
  uint8_t index = 0;
  uint32_t generation = 0;
  Token token{};
};

struct Request {
  uint32_t sequence = 0;
  uint32_t bytes = 0;
  std::array<uint64_t, 2> key{};
  uint64_t offset = 0;
};

std::string LinkOfferBlob();
absl::Status CheckLinkOffer(absl::string_view blob);

std::string LaneOfferBlob(const LaneOffer& offer);
// INVALID_ARGUMENT says what is wrong.
absl::StatusOr<LaneOffer> ParseLaneOffer(absl::string_view blob);

void WriteGreeting(const Token& token, std::byte* to);
// False: these are not the first bytes of a bulk connection. `bytes` may be a beginning.
bool MayBeGreeting(absl::Span<const std::byte> bytes);
// Of kGreetingBytes for which MayBeGreeting is true.
Token TokenOfGreeting(const std::byte* greeting);

// Each Parse checks everything that its bytes can say; DATA_LOSS names value and limit.
void WriteRequest(const Request& request, std::byte* to);
absl::Status ParseRequest(const std::byte* from, uint32_t sequence, Request& request);

void WriteAnswer(uint32_t sequence, Error status, uint32_t bytes, std::byte* to);
// `bytes` is what was asked for.
absl::Status ParseAnswer(const std::byte* from, uint32_t sequence, uint32_t bytes, Error& status);

void WriteTrailer(uint32_t sequence, Error status, std::byte* to);
absl::Status ParseTrailer(const std::byte* from, uint32_t sequence, Error& status);

}  // namespace verbena::fabric::tcp
