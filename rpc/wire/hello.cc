#include "rpc/wire/hello.h"

#include <algorithm>
#include <cstring>
#include <optional>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"

namespace verbena::wire {
namespace {

constexpr char kMagic[4] = {'V', 'R', 'B', 'N'};
constexpr uint16_t kCritical = 1;
constexpr uint32_t kRecordHeaderBytes = 8;
// Records of one message, known or not.
constexpr uint32_t kRecordsMax = 128;
// A transport's name.
constexpr uint32_t kNameBytesMax = 32;

enum Tag : uint16_t {
  kVersion = 1,        // u16 newest or chosen, u16 oldest
  kIncarnation = 2,    // 16 bytes
  kOpenCalls = 3,      // u32
  kTransport = 4,      // name, 0 byte, reason
  kSidePath = 5,       // text
  kSideAbstract = 6,   // text, without the leading 0 byte
  kSideToken = 7,      // 16 bytes
  kTransportName = 9,  // text
  kSegment = 10,       // u32
  kDescriptors = 11,   // u32
  kBlob = 12,          // bytes
  kStatusCode = 13,    // u32
  kStatusText = 14,    // text
};

template <class T>
T LoadLittle(const char* from) {
  T value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) {
    value = static_cast<T>(value | static_cast<T>(static_cast<uint8_t>(from[i])) << (8 * i));
  }
  return value;
}
template <class T>
void AppendLittle(std::string& to, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) to.push_back(static_cast<char>(value >> (8 * i)));
}

class Writer {
 public:
  explicit Writer(HelloType type) {
    text_.append(kMagic, sizeof(kMagic));
    AppendLittle<uint16_t>(text_, static_cast<uint16_t>(type));
    AppendLittle<uint16_t>(text_, 0);
    AppendLittle<uint32_t>(text_, 0);
  }
  void Bytes(Tag tag, absl::string_view bytes) {
    AppendLittle<uint16_t>(text_, tag);
    AppendLittle<uint16_t>(text_, 0);
    AppendLittle<uint32_t>(text_, static_cast<uint32_t>(bytes.size()));
    text_.append(bytes.data(), bytes.size());
  }
  void Text(Tag tag, absl::string_view text) { Bytes(tag, text.substr(0, kHelloTextBytesMax)); }
  void Token(Tag tag, const HelloToken& token) {
    Bytes(tag, absl::string_view(reinterpret_cast<const char*>(token.data()), token.size()));
  }
  void Number(Tag tag, uint32_t value) {
    std::string bytes;
    AppendLittle(bytes, value);
    Bytes(tag, bytes);
  }
  std::string Done() {
    const size_t body = text_.size() - kHelloHeaderBytes;
    for (size_t i = 0; i < 4; ++i) text_[8 + i] = static_cast<char>(body >> (8 * i));
    return std::move(text_);
  }

 private:
  std::string text_;
};

struct Record {
  uint16_t tag = 0;
  bool critical = false;
  absl::string_view bytes;
};

// Walks the records of a body; stops at the first error.
class Reader {
 public:
  explicit Reader(absl::string_view body) : rest_(body) {
    if (body.size() > kHelloBodyBytesMax) {
      status_ =
          Bad(absl::StrCat("a body of ", body.size(), " bytes, at most ", kHelloBodyBytesMax));
    }
  }

  std::optional<Record> Next() {
    if (!status_.ok() || rest_.empty()) return std::nullopt;
    if (++records_ > kRecordsMax) return Fail(absl::StrCat("more than ", kRecordsMax, " records"));
    if (rest_.size() < kRecordHeaderBytes) {
      return Fail(absl::StrCat("a record's header of ", kRecordHeaderBytes, " bytes, ",
                               rest_.size(), " are left"));
    }
    Record record;
    record.tag = LoadLittle<uint16_t>(rest_.data());
    record.critical = (LoadLittle<uint16_t>(rest_.data() + 2) & kCritical) != 0;
    const auto bytes = LoadLittle<uint32_t>(rest_.data() + 4);
    rest_.remove_prefix(kRecordHeaderBytes);
    if (bytes > rest_.size()) {
      return Fail(absl::StrCat("record ", record.tag, " of ", bytes, " bytes, ", rest_.size(),
                               " are left"));
    }
    record.bytes = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return record;
  }

  std::optional<Record> Fail(absl::string_view what) {
    if (status_.ok()) status_ = Bad(what);
    return std::nullopt;
  }
  void Unknown(const Record& record) {
    if (record.critical) {
      Fail(absl::StrCat("record ", record.tag, " must be understood and is not known here"));
    }
  }
  void Token(const Record& record, HelloToken& token) {
    if (record.bytes.size() != token.size()) {
      Fail(absl::StrCat("record ", record.tag, " of ", record.bytes.size(), " bytes, must be 16"));
      return;
    }
    std::memcpy(token.data(), record.bytes.data(), token.size());
  }
  void Number(const Record& record, uint32_t& value) {
    if (record.bytes.size() != 4) {
      Fail(absl::StrCat("record ", record.tag, " of ", record.bytes.size(), " bytes, must be 4"));
      return;
    }
    value = LoadLittle<uint32_t>(record.bytes.data());
  }
  // As it is: names of files.
  void Raw(const Record& record, size_t bytes_max, std::string& value) {
    if (record.bytes.size() > bytes_max) {
      Fail(absl::StrCat("record ", record.tag, " of ", record.bytes.size(), " bytes, at most ",
                        bytes_max));
      return;
    }
    value.assign(record.bytes.data(), record.bytes.size());
  }
  // For people: escaped.
  void Text(const Record& record, std::string& value) {
    Raw(record, kHelloTextBytesMax, value);
    value = absl::CHexEscape(value);
  }
  const absl::Status& status() const { return status_; }

 private:
  static absl::Status Bad(absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: ", what));
  }
  absl::string_view rest_;
  uint32_t records_ = 0;
  absl::Status status_;
};

void ReadTransport(Reader& reader, const Record& record, std::vector<TransportOffer>& to) {
  if (to.size() == kHelloTransportsMax) {
    reader.Fail(absl::StrCat("more than ", kHelloTransportsMax, " transports"));
    return;
  }
  TransportOffer offer;
  std::string both;
  reader.Raw(record, size_t{2} * kHelloTextBytesMax, both);
  const size_t zero = both.find('\0');
  offer.name = both.substr(0, zero);
  if (zero != std::string::npos) offer.reason = absl::CHexEscape(both.substr(zero + 1));
  if (!IsTransportName(offer.name)) {
    reader.Fail(absl::StrCat("a transport's name of ", offer.name.size(), " bytes, \"",
                             absl::CHexEscape(offer.name.substr(0, kNameBytesMax)), "\": 1 to ",
                             kNameBytesMax, " letters, digits, - or _"));
  }
  to.push_back(std::move(offer));
}

absl::Status ReadStatus(uint32_t code, absl::string_view text) {
  if (code == 0) return absl::OkStatus();
  const bool known = code <= static_cast<uint32_t>(absl::StatusCode::kUnauthenticated);
  return absl::Status(known ? static_cast<absl::StatusCode>(code) : absl::StatusCode::kUnknown,
                      text);
}

}  // namespace

bool IsTransportName(absl::string_view name) {
  return !name.empty() && name.size() <= kNameBytesMax &&
         std::all_of(name.begin(), name.end(), [](char c) {
           return absl::ascii_isalnum(static_cast<unsigned char>(c)) || c == '_' || c == '-';
         });
}

absl::string_view HelloTypeName(HelloType type) {
  switch (type) {
    case HelloType::kHello:
      return "HELLO";
    case HelloType::kHelloReply:
      return "HELLO_REPLY";
    case HelloType::kOpen:
      return "OPEN";
    case HelloType::kOpenReply:
      return "OPEN_REPLY";
    case HelloType::kRefuse:
      return "REFUSE";
  }
  return "a message of unknown type";
}

absl::StatusOr<HelloHeader> DecodeHelloHeader(absl::string_view header) {
  if (header.size() != kHelloHeaderBytes) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: a header of ", header.size(),
                                                   " bytes, must be ", kHelloHeaderBytes));
  }
  if (std::memcmp(header.data(), kMagic, sizeof(kMagic)) != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("the peer does not speak this protocol: its first bytes are \"",
                     absl::CHexEscape(header.substr(0, 4)), "\""));
  }
  HelloHeader decoded;
  const auto type = LoadLittle<uint16_t>(header.data() + 4);
  decoded.type = static_cast<HelloType>(type);
  decoded.body_bytes = LoadLittle<uint32_t>(header.data() + 8);
  if (type < static_cast<uint16_t>(HelloType::kHello) ||
      type > static_cast<uint16_t>(HelloType::kRefuse)) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: message type ", type,
                                                   ", not 1 to ",
                                                   static_cast<uint16_t>(HelloType::kRefuse)));
  }
  if (decoded.body_bytes > kHelloBodyBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: a body of ", decoded.body_bytes,
                                                   " bytes, at most ", kHelloBodyBytesMax));
  }
  return decoded;
}

absl::StatusOr<Hello> DecodeHello(absl::string_view body) {
  Hello hello;
  hello.version = 0;
  Reader reader(body);
  while (std::optional<Record> record = reader.Next()) {
    switch (record->tag) {
      case kVersion:
        if (record->bytes.size() != 4) {
          reader.Fail(absl::StrCat("a version of ", record->bytes.size(), " bytes, must be 4"));
          break;
        }
        hello.version = LoadLittle<uint16_t>(record->bytes.data());
        hello.version_oldest = LoadLittle<uint16_t>(record->bytes.data() + 2);
        break;
      case kIncarnation:
        reader.Token(*record, hello.incarnation);
        break;
      case kOpenCalls:
        reader.Number(*record, hello.open_calls_max);
        break;
      case kTransport:
        ReadTransport(reader, *record, hello.transports);
        break;
      case kSidePath:
        reader.Raw(*record, 107, hello.side_path);
        break;
      case kSideAbstract:
        reader.Raw(*record, 107, hello.side_abstract);
        break;
      case kSideToken:
        reader.Token(*record, hello.side_token);
        break;
      default:
        reader.Unknown(*record);
    }
  }
  if (!reader.status().ok()) return reader.status();
  if (hello.version == 0 || hello.version_oldest > hello.version) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: versions ", hello.version_oldest,
                                                   " to ", hello.version,
                                                   "; the newest is at least 1 and the oldest"));
  }
  return hello;
}

absl::StatusOr<OpenMessage> DecodeOpen(absl::string_view body) {
  OpenMessage open;
  uint32_t code = 0;
  std::string text;
  Reader reader(body);
  while (std::optional<Record> record = reader.Next()) {
    switch (record->tag) {
      case kTransportName:
        reader.Text(*record, open.transport);
        break;
      case kSegment:
        reader.Number(*record, open.segment_bytes);
        break;
      case kDescriptors:
        reader.Number(*record, open.descriptors);
        break;
      case kBlob:
        reader.Raw(*record, kHelloBlobBytesMax, open.blob);
        break;
      case kStatusCode:
        reader.Number(*record, code);
        break;
      case kStatusText:
        reader.Text(*record, text);
        break;
      default:
        reader.Unknown(*record);
    }
  }
  if (!reader.status().ok()) return reader.status();
  if (open.descriptors > kHelloDescriptorsMax) {
    return absl::InvalidArgumentError(absl::StrCat("bad handshake: ", open.descriptors,
                                                   " descriptors, at most ", kHelloDescriptorsMax));
  }
  open.status = ReadStatus(code, text);
  return open;
}

absl::Status DecodeRefuse(absl::string_view body, absl::Status& refusal) {
  uint32_t code = static_cast<uint32_t>(absl::StatusCode::kUnknown);
  std::string text;
  Reader reader(body);
  while (std::optional<Record> record = reader.Next()) {
    switch (record->tag) {
      case kStatusCode:
        reader.Number(*record, code);
        break;
      case kStatusText:
        reader.Text(*record, text);
        break;
      default:
        reader.Unknown(*record);
    }
  }
  if (code == 0) code = static_cast<uint32_t>(absl::StatusCode::kUnknown);
  refusal = ReadStatus(code, text);
  return reader.status();
}

std::string EncodeHello(HelloType type, const Hello& hello) {
  Writer writer(type);
  std::string version;
  AppendLittle(version, hello.version);
  AppendLittle(version, hello.version_oldest);
  writer.Bytes(kVersion, version);
  writer.Token(kIncarnation, hello.incarnation);
  writer.Number(kOpenCalls, hello.open_calls_max);
  for (const TransportOffer& offer : hello.transports) {
    writer.Bytes(kTransport,
                 absl::StrCat(offer.name, absl::string_view("\0", 1),
                              absl::string_view(offer.reason).substr(0, kHelloTextBytesMax)));
  }
  if (type == HelloType::kHelloReply) {
    if (!hello.side_path.empty()) writer.Text(kSidePath, hello.side_path);
    if (!hello.side_abstract.empty()) writer.Text(kSideAbstract, hello.side_abstract);
    writer.Token(kSideToken, hello.side_token);
  }
  return writer.Done();
}

std::string EncodeOpen(HelloType type, const OpenMessage& open) {
  Writer writer(type);
  writer.Text(kTransportName, open.transport);
  if (!open.status.ok()) {
    writer.Number(kStatusCode, static_cast<uint32_t>(open.status.code()));
    writer.Text(kStatusText, open.status.message());
  }
  writer.Number(kSegment, open.segment_bytes);
  writer.Number(kDescriptors, open.descriptors);
  writer.Bytes(kBlob, open.blob);
  return writer.Done();
}

std::string EncodeRefuse(const absl::Status& why) {
  Writer writer(HelloType::kRefuse);
  writer.Number(kStatusCode, static_cast<uint32_t>(why.code()));
  writer.Text(kStatusText, why.message());
  return writer.Done();
}

}  // namespace verbena::wire
