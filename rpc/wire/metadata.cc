#include "rpc/wire/metadata.h"

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/wire/bad_length.h"
#include "rpc/wire/frame.h"

namespace verbena::wire {
namespace {

constexpr size_t kPairHeaderBytes = 8;
// Of a bad key: enough to find it.
constexpr size_t kKeyBytesShown = 64;

bool IsKey(absl::string_view key) {
  for (const char c : key) {
    const bool good =
        (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '_' || c == '.';
    if (!good) return false;
  }
  return !key.empty();
}

std::byte* Append(absl::string_view text, std::byte* to) {
  if (!text.empty()) std::memcpy(to, text.data(), text.size());
  return to + text.size();
}

}  // namespace

size_t MetadataBytes(absl::Span<const MetadataPair> pairs) {
  size_t bytes = 0;
  for (const auto& [key, value] : pairs) bytes += kPairHeaderBytes + key.size() + value.size();
  return bytes;
}

std::byte* EncodeMetadata(absl::Span<const MetadataPair> pairs, std::byte* to) {
  for (const auto& [key, value] : pairs) {
    Store(to, static_cast<uint32_t>(key.size()));
    Store(to + 4, static_cast<uint32_t>(value.size()));
    to = Append(value, Append(key, to + kPairHeaderBytes));
  }
  return to;
}

absl::Status DecodeMetadata(absl::Span<const std::byte> content, uint32_t count,
                            MetadataPairs& pairs) {
  pairs.clear();
  if (content.size() > limits::kMetadataBytesMax) {
    return absl::InvalidArgumentError(absl::StrCat(
        "metadata of ", content.size(), " bytes; the limit is ", limits::kMetadataBytesMax));
  }
  const char* at = reinterpret_cast<const char*>(content.data());
  size_t left = content.size();
  for (uint32_t i = 0; i < count; ++i) {
    if (left < kPairHeaderBytes) return Truncated("metadata", kPairHeaderBytes, left);
    const uint64_t key_bytes = Load<uint32_t>(reinterpret_cast<const std::byte*>(at));
    const uint64_t value_bytes = Load<uint32_t>(reinterpret_cast<const std::byte*>(at + 4));
    left -= kPairHeaderBytes;
    if (key_bytes + value_bytes > left) return Truncated("metadata", key_bytes + value_bytes, left);
    const absl::string_view key(at + kPairHeaderBytes, key_bytes);
    if (!IsKey(key)) {
      return absl::InvalidArgumentError(absl::StrCat(
          "a metadata key of ", key_bytes, " bytes, \"",
          absl::CHexEscape(key.substr(0, kKeyBytesShown)), "\", is not of [0-9a-z_.-]"));
    }
    pairs.emplace_back(key, absl::string_view(key.data() + key_bytes, value_bytes));
    at += kPairHeaderBytes + key_bytes + value_bytes;
    left -= key_bytes + value_bytes;
  }
  if (left != 0) return LeftOver("the metadata", left);
  return absl::OkStatus();
}

}  // namespace verbena::wire
