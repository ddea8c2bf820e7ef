#pragma once
// The messages that set a link up, on the stream that the client connected: HELLO, HELLO_REPLY,
// OPEN, OPEN_REPLY; REFUSE in place of any reply.
// Pure encoding and decoding.
//
// A message is a header of 12 bytes and a body:
//   offset 0  4 bytes "VRBN"        anything else: not this protocol
//          4  u16  HelloType
//          6  u16  reserved, 0
//          8  u32  bytes of the body, at most kHelloBodyBytesMax; more: the connection closes
// A body is a sequence of records: u16 tag, u16 flags, u32 bytes, then so many bytes. Integers are
// little endian. A record whose tag the receiver does not know is skipped, unless flag 1 (critical)
// is set: then the message is refused. So features are added without a new version. Text is at most
// kHelloTextBytesMax; the receiver escapes what is not printable.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"

namespace verbena::wire {

inline constexpr uint32_t kHelloHeaderBytes = 12;
inline constexpr uint32_t kHelloBodyBytesMax = 64 * 1024;
inline constexpr uint32_t kHelloTextBytesMax = 1024;
inline constexpr uint32_t kHelloBlobBytesMax =
    48 * 1024;  // with all else it stays below the body's maximum
inline constexpr uint32_t kHelloTransportsMax = 16;
inline constexpr uint32_t kHelloDescriptorsMax = 8;  // with one OPEN or OPEN_REPLY
// The first byte of a TLS record, never of a message.
inline constexpr uint8_t kTlsFirstByte = 0x16;
// The protocol spoken here, and the oldest that is still understood.
inline constexpr uint16_t kProtocolVersion = 1;
inline constexpr uint16_t kProtocolVersionOldest = 1;

enum class HelloType : uint16_t {
  kHello = 1,
  kHelloReply = 2,
  kOpen = 3,
  kOpenReply = 4,
  kRefuse = 5,
};
absl::string_view HelloTypeName(HelloType type);

struct HelloHeader {
  HelloType type = HelloType::kHello;
  uint32_t body_bytes = 0;
};

using HelloToken = std::array<uint8_t, 16>;

// What may stand for a transport: 1 to 32 letters, digits, '-' and '_'.
bool IsTransportName(absl::string_view name);

// A transport that the sender has, or why it has not (then `reason` is not empty).
struct TransportOffer {
  std::string name;
  std::string reason;
};

// HELLO (client) and HELLO_REPLY (server).
struct Hello {
  uint16_t version = kProtocolVersion;  // HELLO_REPLY: the one that both will speak
  uint16_t version_oldest = kProtocolVersionOldest;
  HelloToken incarnation{};     // random per process
  uint32_t open_calls_max = 0;  // calls that the peer may have open on the link
  std::vector<TransportOffer> transports;
  // HELLO_REPLY: where the client passes descriptors when it is on this host; empty = nowhere.
  std::string side_path;
  std::string side_abstract;
  HelloToken side_token{};  // single use, on the side socket
};

// OPEN (client) and OPEN_REPLY (server): one side's half of a transport. Descriptors pass on the
// side socket before.
struct OpenMessage {
  std::string transport;
  uint32_t segment_bytes = 0;  // the largest frame that the sender takes
  uint32_t descriptors = 0;
  std::string blob;
  absl::Status status;  // OPEN_REPLY: why the transport cannot be; OK = opened
};

// What decoders answer when a message is wrong: INVALID_ARGUMENT naming what and the limit.
absl::StatusOr<HelloHeader> DecodeHelloHeader(absl::string_view header);
absl::StatusOr<Hello> DecodeHello(absl::string_view body);
absl::StatusOr<OpenMessage> DecodeOpen(absl::string_view body);
// `refusal` gets what the peer said and is never OK; the result is whether it was said properly.
absl::Status DecodeRefuse(absl::string_view body, absl::Status& refusal);

// Whole messages, with header. Text is cut to its maximum.
std::string EncodeHello(HelloType type, const Hello& hello);
std::string EncodeOpen(HelloType type, const OpenMessage& open);
std::string EncodeRefuse(const absl::Status& why);

}  // namespace verbena::wire
