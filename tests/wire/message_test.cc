#include "rpc/wire/message.h"

#include <random>
#include <string>
#include <vector>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "rpc/wire/status.h"
#include "tests/catch.h"

namespace verbena::wire {
namespace {

using Catch::ContainsSubstring;

PayloadEntry Entry(uint64_t ticket, uint64_t bytes, size_t pieces = 1) {
  PayloadEntry entry;
  entry.ticket = ticket;
  entry.bytes = bytes;
  if (bytes == 0) return entry;
  entry.lease = ticket + 1;
  entry.lanes = 2;
  entry.key_generation = 0xabcdef;
  entry.device_kind = 1;
  entry.device_index = 3;
  for (size_t i = 0; i < pieces; ++i) {
    const uint64_t part = i + 1 == pieces ? bytes - (pieces - 1) : 1;
    entry.pieces.push_back({i * 100, part});
    entry.keys.push_back({i, 1, 2, 3});
    entry.keys.push_back({i, 4, 5, 6});
  }
  return entry;
}

std::vector<std::byte> Encode(const MessageParts& parts, uint8_t& flags) {
  std::vector<std::byte> bytes(SectionsBytes(parts));
  flags = EncodeSections(parts, bytes.data());
  return bytes;
}

absl::Span<const std::byte> Bytes(absl::string_view text) {
  return {reinterpret_cast<const std::byte*>(text.data()), text.size()};
}

TEST_CASE("a message comes back with all its sections", "[wire]") {
  const std::vector<MetadataPair> metadata = {{"x-trace", "abc"},
                                              {"blob-bin", absl::string_view("\0\1", 2)}};
  absl::Status failure = absl::NotFoundError("no such thing");
  failure.SetPayload("type.googleapis.com/a", absl::Cord("detail"));
  const PayloadTable table = {Entry(5, 1000), Entry(6, 0), Entry(7, 4096, 64)};
  MessageParts parts;
  parts.status = &failure;
  parts.metadata = metadata;
  parts.table = table;
  parts.body = Bytes("body of 13 B.");
  uint8_t flags = 0;
  const std::vector<std::byte> bytes = Encode(parts, flags);
  MessageView view;
  REQUIRE(DecodeSections(MessageKind::kReply, flags, bytes, view).ok());
  CHECK(view.status == failure);
  REQUIRE(view.metadata.size() == 2);
  CHECK(view.metadata[0] == metadata[0]);
  CHECK(view.metadata[1] == metadata[1]);
  CHECK(std::string(reinterpret_cast<const char*>(view.body.data()), view.body.size()) ==
        "body of 13 B.");
  REQUIRE(view.table.size() == 3);
  CHECK(view.table[0].key_generation == 0xabcdef);
  CHECK(view.table[0].device_kind == 1);
  CHECK(view.table[0].device_index == 3);
  CHECK(view.table[1].pieces.empty());
  REQUIRE(view.table[2].pieces.size() == 64);
  CHECK(view.table[2].keys[127] == Key{63, 4, 5, 6});
}

TEST_CASE("a plain message is its body", "[wire]") {
  MessageParts parts;
  parts.body = Bytes("0123456789012345678901234567890123");
  uint8_t flags = 1;
  // A request of a 32-byte field fits one line of 64 with both headers.
  CHECK(RoundUp8(kFrameHeaderBytes + kRequestHeaderBytes + SectionsBytes(parts)) <= 64);
  const std::vector<std::byte> bytes = Encode(parts, flags);
  CHECK(flags == 0);
  MessageView view;
  REQUIRE(DecodeSections(MessageKind::kRequest, flags, bytes, view).ok());
  CHECK(view.body.size() == 34);
}

TEST_CASE("a wide timeout travels beside the header's", "[wire]") {
  MessageParts parts;
  parts.wide_timeout_us = uint64_t{1} << 40;
  uint8_t flags = 0;
  const std::vector<std::byte> bytes = Encode(parts, flags);
  MessageView view;
  REQUIRE(DecodeSections(MessageKind::kRequest, flags, bytes, view).ok());
  CHECK(view.wide_timeout_us == uint64_t{1} << 40);
  CHECK_FALSE(
      DecodeSections(MessageKind::kRequest, flags, absl::MakeConstSpan(bytes).first(7), view).ok());
}

TEST_CASE("every truncation of a message is refused or shorter, never read past its end",
          "[wire]") {
  const std::vector<MetadataPair> metadata = {{"k", "v"}};
  const PayloadTable table = {Entry(1, 10)};
  MessageParts parts;
  parts.metadata = metadata;
  parts.table = table;
  uint8_t flags = 0;
  const std::vector<std::byte> bytes = Encode(parts, flags);
  MessageView view;
  for (size_t keep = 0; keep < bytes.size(); ++keep) {
    const std::vector<std::byte> cut(bytes.begin(),
                                     bytes.begin() + static_cast<std::ptrdiff_t>(keep));
    const absl::Status status = DecodeSections(MessageKind::kReply, flags, cut, view);
    REQUIRE_FALSE(status.ok());
    CHECK_THAT(std::string(status.message()),
               ContainsSubstring("truncated: it needs ") && ContainsSubstring(" are there"));
  }
}

TEST_CASE("payload tables that do not add up are refused", "[wire]") {
  const auto refused = [](const PayloadEntry& entry) {
    std::vector<std::byte> bytes(EntryBytes(entry));
    EncodeEntry(entry, bytes.data());
    PayloadTable table;
    return !DecodeTable(bytes, 1, table).ok();
  };
  REQUIRE_FALSE(refused(Entry(1, 10)));
  PayloadEntry entry = Entry(1, 10);
  entry.bytes = 11;  // pieces lack one
  CHECK(refused(entry));
  entry = Entry(1, 10);
  entry.pieces[0] = {UINT64_MAX - 4, 10};  // passes the end of 64 bits
  CHECK(refused(entry));
  entry = Entry(1, 10, 2);
  entry.pieces[0].bytes = UINT64_MAX;
  CHECK(refused(entry));
  entry = Entry(1, 10);
  entry.lease = 0;
  CHECK(refused(entry));
  entry = Entry(1, 0);
  entry.lease = 4;
  CHECK(refused(entry));
  entry = Entry(1, 100, 65);  // one piece too many
  CHECK(refused(entry));
  entry = Entry(1, 10);
  entry.lanes = 5;
  CHECK(refused(entry));
  // A count that the bytes cannot hold allocates nothing.
  PayloadTable table;
  CHECK_FALSE(DecodeTable(std::vector<std::byte>(64), 4096, table).ok());
  CHECK_FALSE(DecodeTable(std::vector<std::byte>(64), 0xffffffff, table).ok());
  CHECK(table.empty());
}

TEST_CASE("metadata with bad keys, lengths or too many bytes is refused", "[wire]") {
  const auto encode = [](const std::vector<MetadataPair>& pairs) {
    std::vector<std::byte> bytes(MetadataBytes(pairs));
    EncodeMetadata(pairs, bytes.data());
    return bytes;
  };
  MetadataPairs pairs;
  CHECK(DecodeMetadata(encode({{"a-key_1.bin", ""}}), 1, pairs).ok());
  CHECK_FALSE(DecodeMetadata(encode({{"", "v"}}), 1, pairs).ok());
  CHECK_FALSE(DecodeMetadata(encode({{"Upper", "v"}}), 1, pairs).ok());
  CHECK_THAT(std::string(DecodeMetadata(encode({{"a b", "v"}}), 1, pairs).message()),
             ContainsSubstring("key of 3 bytes, \"a b\""));
  CHECK_FALSE(DecodeMetadata(encode({{"a", "v"}}), 2, pairs).ok());
  CHECK_THAT(std::string(DecodeMetadata(encode({{"a", "v"}, {"b", "w"}}), 1, pairs).message()),
             ContainsSubstring("10 bytes are left after the metadata"));
  const std::string large(limits::kMetadataBytesMax, 'x');
  CHECK_FALSE(DecodeMetadata(encode({{"a", large}}), 1, pairs).ok());
  std::vector<std::byte> lies = encode({{"a", "v"}});
  Store(lies.data(), uint32_t{0xffffffff});
  Store(lies.data() + 4, uint32_t{0xffffffff});
  CHECK_FALSE(DecodeMetadata(lies, 1, pairs).ok());
}

TEST_CASE("a status is cut to its limit, unknown codes become UNKNOWN", "[wire]") {
  absl::Status huge = absl::InternalError(std::string(100'000, 'm'));
  huge.SetPayload("a", absl::Cord(std::string(100'000, 'd')));
  std::vector<std::byte> bytes(StatusBytes(huge));
  CHECK(bytes.size() <= kStatusBytesMax);
  size_t details = 7;
  CHECK(EncodeStatus(huge, bytes.data(), details) == bytes.data() + bytes.size());
  CHECK(details == 0);
  absl::Status back;
  REQUIRE(DecodeStatus(bytes, 0, back).ok());
  CHECK(back.code() == absl::StatusCode::kInternal);
  Store(bytes.data(), uint32_t{99});
  REQUIRE(DecodeStatus(bytes, 0, back).ok());
  CHECK(back.code() == absl::StatusCode::kUnknown);
  CHECK_FALSE(DecodeStatus(bytes, 1, back).ok());
}

TEST_CASE("random bytes are decoded or refused", "[wire]") {
  std::mt19937 random(GENERATE(11u, 12u, 13u));
  MessageView view;
  for (int i = 0; i < 20'000; ++i) {
    std::vector<std::byte> bytes(random() % 160);
    for (std::byte& byte : bytes)
      byte = static_cast<std::byte>(random() % 3 == 0 ? random() % 128 : 0);
    const auto kind = random() % 2 == 0 ? MessageKind::kRequest : MessageKind::kReply;
    const uint8_t flags = static_cast<uint8_t>(random());
    if (!DecodeSections(kind, flags, bytes, view).ok()) continue;
    REQUIRE(view.body.size() <= bytes.size());
  }
}

}  // namespace
}  // namespace verbena::wire
