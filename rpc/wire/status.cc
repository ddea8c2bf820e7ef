#include "rpc/wire/status.h"

#include <algorithm>
#include <string>

#include "absl/strings/cord.h"
#include "absl/strings/str_cat.h"
#include "rpc/wire/bad_length.h"
#include "rpc/wire/frame.h"

namespace verbena::wire {
namespace {

constexpr size_t kItemHeaderBytes = 8;
constexpr size_t kMessageBytesMax = kStatusBytesMax / 2;

size_t MessageBytes(const absl::Status& status) {
  return std::min(status.message().size(), kMessageBytesMax - kItemHeaderBytes);
}

// Visits the details that fit, in a fixed order.
template <class F>
void ForEachDetail(const absl::Status& status, F&& f) {
  size_t left = kStatusBytesMax - kItemHeaderBytes - MessageBytes(status);
  status.ForEachPayload([&](absl::string_view url, const absl::Cord& value) {
    const size_t bytes = kItemHeaderBytes + url.size() + value.size();
    if (bytes > left) return;
    left -= bytes;
    f(url, value);
  });
}

std::byte* EncodeDetail(absl::string_view url, const absl::Cord& value, std::byte* to) {
  Store(to, static_cast<uint32_t>(url.size()));
  Store(to + 4, static_cast<uint32_t>(value.size()));
  to += kItemHeaderBytes;
  if (!url.empty()) std::memcpy(to, url.data(), url.size());
  to += url.size();
  for (const absl::string_view chunk : value.Chunks()) {
    std::memcpy(to, chunk.data(), chunk.size());
    to += chunk.size();
  }
  return to;
}

// Takes {u32, u32} of `what` and checks that `first + second` bytes follow, or `second` behind a
// code.
absl::Status TakeItem(absl::string_view what, const char*& at, size_t& left, uint64_t& first,
                      uint64_t& second, bool first_is_code) {
  if (left < kItemHeaderBytes) return Truncated(what, kItemHeaderBytes, left);
  first = Load<uint32_t>(reinterpret_cast<const std::byte*>(at));
  second = Load<uint32_t>(reinterpret_cast<const std::byte*>(at + 4));
  at += kItemHeaderBytes;
  left -= kItemHeaderBytes;
  const uint64_t bytes = (first_is_code ? 0 : first) + second;
  return bytes <= left ? absl::OkStatus() : Truncated(what, bytes, left);
}

absl::StatusCode CodeOf(uint64_t code) {
  return code <= static_cast<uint64_t>(absl::StatusCode::kUnauthenticated)
             ? static_cast<absl::StatusCode>(code)
             : absl::StatusCode::kUnknown;
}

}  // namespace

size_t StatusBytes(const absl::Status& status) {
  size_t bytes = kItemHeaderBytes + MessageBytes(status);
  ForEachDetail(status, [&](absl::string_view url, const absl::Cord& value) {
    bytes += kItemHeaderBytes + url.size() + value.size();
  });
  return bytes;
}

std::byte* EncodeStatus(const absl::Status& status, std::byte* to, size_t& details) {
  const size_t message_bytes = MessageBytes(status);
  Store(to, static_cast<uint32_t>(status.code()));
  Store(to + 4, static_cast<uint32_t>(message_bytes));
  to += kItemHeaderBytes;
  if (message_bytes != 0) std::memcpy(to, status.message().data(), message_bytes);
  to += message_bytes;
  details = 0;
  ForEachDetail(status, [&](absl::string_view url, const absl::Cord& value) {
    to = EncodeDetail(url, value, to);
    ++details;
  });
  return to;
}

absl::Status DecodeStatus(absl::Span<const std::byte> content, uint32_t details,
                          absl::Status& status) {
  const char* at = reinterpret_cast<const char*>(content.data());
  size_t left = content.size();
  uint64_t code = 0;
  uint64_t message_bytes = 0;
  if (left > kStatusBytesMax) {
    return absl::InvalidArgumentError(
        absl::StrCat("a status of ", left, " bytes; the limit is ", kStatusBytesMax));
  }
  absl::Status taken = TakeItem("a status", at, left, code, message_bytes, true);
  if (!taken.ok()) return taken;
  status = absl::Status(CodeOf(code), absl::string_view(at, message_bytes));
  at += message_bytes;
  left -= message_bytes;
  for (uint32_t i = 0; i < details; ++i) {
    uint64_t url_bytes = 0;
    uint64_t value_bytes = 0;
    taken = TakeItem("a detail of a status", at, left, url_bytes, value_bytes, false);
    if (!taken.ok()) return taken;
    status.SetPayload(absl::string_view(at, url_bytes),
                      absl::Cord(absl::string_view(at + url_bytes, value_bytes)));
    at += url_bytes + value_bytes;
    left -= url_bytes + value_bytes;
  }
  if (left != 0) return LeftOver("a status", left);
  return absl::OkStatus();
}

}  // namespace verbena::wire
