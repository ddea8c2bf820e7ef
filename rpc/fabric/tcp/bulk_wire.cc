#include "rpc/fabric/tcp/bulk_wire.h"

#include <bit>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/read_answer.h"

namespace verbena::fabric::tcp {
namespace {

static_assert(std::endian::native == std::endian::little, "fields are copied as they are");

constexpr char kLinkMagic[] = "VBT1";
constexpr char kLaneMagic[] = "VBL1";
constexpr char kGreetingMagic[] = "VBJ1";
constexpr size_t kMagicBytes = 4;

template <class T>
void Put(std::byte* to, size_t at, T value) {
  memcpy(to + at, &value, sizeof value);
}

template <class T>
T Get(const void* from, size_t at) {
  T value;
  memcpy(&value, static_cast<const std::byte*>(from) + at, sizeof value);
  return value;
}

absl::Status CheckEcho(absl::string_view what, const std::byte* from, uint32_t sequence) {
  const auto echoed = Get<uint32_t>(from, 0);
  if (echoed != sequence) {
    return absl::DataLossError(
        absl::StrCat("tcp: ", what, " of READ ", echoed, ", expected ", sequence));
  }
  const auto word = Get<uint32_t>(from, 4);
  if (!OwnerMayAnswer(word)) {
    return absl::DataLossError(absl::StrCat("tcp: ", what, " with status ", word));
  }
  return absl::OkStatus();
}

}  // namespace

std::string LinkOfferBlob() { return std::string(kLinkMagic, kLinkOfferBytes); }

absl::Status CheckLinkOffer(absl::string_view blob) {
  if (blob == absl::string_view(kLinkMagic, kLinkOfferBytes)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("tcp: an offer of ", blob.size(), " bytes that is none of this version"));
}

std::string LaneOfferBlob(const LaneOffer& offer) {
  std::string blob(kLaneOfferBytes, '\0');
  auto* to = reinterpret_cast<std::byte*>(blob.data());
  memcpy(to, kLaneMagic, kMagicBytes);
  Put(to, 4, offer.port);
  Put(to, 6, offer.index);
  Put(to, 8, offer.generation);
  memcpy(to + 16, offer.token.data(), sizeof offer.token);
  return blob;
}

absl::StatusOr<LaneOffer> ParseLaneOffer(absl::string_view blob) {
  if (blob.size() != kLaneOfferBytes || memcmp(blob.data(), kLaneMagic, kMagicBytes) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("tcp: a lane offer of ", blob.size(), " bytes that is none of this version"));
  }
  LaneOffer offer;
  offer.port = Get<uint16_t>(blob.data(), 4);
  offer.index = Get<uint8_t>(blob.data(), 6);
  offer.generation = Get<uint32_t>(blob.data(), 8);
  memcpy(offer.token.data(), blob.data() + 16, sizeof offer.token);
  return offer;
}

void WriteGreeting(const Token& token, std::byte* to) {
  memcpy(to, kGreetingMagic, kMagicBytes);
  memcpy(to + kMagicBytes, token.data(), sizeof token);
}

bool MayBeGreeting(absl::Span<const std::byte> bytes) {
  const size_t known = bytes.size() < kMagicBytes ? bytes.size() : kMagicBytes;
  return memcmp(bytes.data(), kGreetingMagic, known) == 0;
}

Token TokenOfGreeting(const std::byte* greeting) {
  Token token;
  memcpy(token.data(), greeting + kMagicBytes, sizeof token);
  return token;
}

void WriteRequest(const Request& request, std::byte* to) {
  Put(to, 0, request.sequence);
  Put(to, 4, request.bytes);
  Put(to, 8, request.key[0]);
  Put(to, 16, request.key[1]);
  Put(to, 24, request.offset);
}

absl::Status ParseRequest(const std::byte* from, uint32_t sequence, Request& request) {
  request.sequence = Get<uint32_t>(from, 0);
  request.bytes = Get<uint32_t>(from, 4);
  request.key = {Get<uint64_t>(from, 8), Get<uint64_t>(from, 16)};
  request.offset = Get<uint64_t>(from, 24);
  if (request.sequence != sequence) {
    return absl::DataLossError(
        absl::StrCat("tcp: READ ", request.sequence, " requested, expected ", sequence));
  }
  if (request.bytes > kChunkBytesMax) {
    return absl::DataLossError(
        absl::StrCat("tcp: a READ of ", request.bytes, " bytes; the limit is ", kChunkBytesMax));
  }
  return absl::OkStatus();
}

void WriteAnswer(uint32_t sequence, Error status, uint32_t bytes, std::byte* to) {
  memset(to, 0, kAnswerBytes);
  Put(to, 0, sequence);
  Put(to, 4, static_cast<uint32_t>(status));
  Put(to, 8, bytes);
}

absl::Status ParseAnswer(const std::byte* from, uint32_t sequence, uint32_t bytes, Error& status) {
  if (absl::Status echo = CheckEcho("an answer", from, sequence); !echo.ok()) return echo;
  status = static_cast<Error>(Get<uint8_t>(from, 4));
  const auto answered = Get<uint32_t>(from, 8);
  const uint32_t expected = status == Error::kOk ? bytes : 0;
  if (answered != expected) {
    return absl::DataLossError(absl::StrCat("tcp: an answer of ", answered, " bytes to READ ",
                                            sequence, ", expected ", expected));
  }
  return absl::OkStatus();
}

void WriteTrailer(uint32_t sequence, Error status, std::byte* to) {
  memset(to, 0, kTrailerBytes);
  Put(to, 0, sequence);
  Put(to, 4, static_cast<uint32_t>(status));
}

absl::Status ParseTrailer(const std::byte* from, uint32_t sequence, Error& status) {
  if (absl::Status echo = CheckEcho("a trailer", from, sequence); !echo.ok()) return echo;
  status = static_cast<Error>(Get<uint8_t>(from, 4));
  return absl::OkStatus();
}

}  // namespace verbena::fabric::tcp
