// What lies behind a request's or reply's header, which may also have come by READ: status,
// metadata, payload table. What decodes must encode to the same bytes again.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "rpc/wire/message.h"

namespace {

// The table, where sizes and counts are the peer's: nothing may be lost or invented on the way.
void CheckTable(const verbena::wire::PayloadTable& table) {
  std::vector<std::byte> bytes(verbena::wire::TableBytes(table));
  if (verbena::wire::EncodeTable(table, bytes.data()) != bytes.data() + bytes.size()) std::abort();
  verbena::wire::PayloadTable again;
  if (!verbena::wire::DecodeTable(bytes, static_cast<uint32_t>(table.size()), again).ok())
    std::abort();
  std::vector<std::byte> second(verbena::wire::TableBytes(again));
  verbena::wire::EncodeTable(again, second.data());
  if (bytes != second) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const auto kind = (data[0] & 1) != 0 ? verbena::wire::MessageKind::kReply
                                       : verbena::wire::MessageKind::kRequest;
  const absl::Span<const std::byte> content(reinterpret_cast<const std::byte*>(data + 1), size - 1);
  verbena::wire::MessageView view;
  if (!verbena::wire::DecodeSections(kind, data[0], content, view).ok()) return 0;
  CheckTable(view.table);
  verbena::wire::MessageParts parts;
  parts.wide_timeout_us = view.wide_timeout_us;
  if (!view.status.ok()) parts.status = &view.status;
  parts.metadata = view.metadata;
  parts.table = view.table;
  parts.body_leased = view.body_leased;
  parts.body = view.body;
  std::vector<std::byte> bytes(verbena::wire::SectionsBytes(parts));
  const uint8_t flags = verbena::wire::EncodeSections(parts, bytes.data());
  verbena::wire::MessageView again;
  if (!verbena::wire::DecodeSections(kind, flags, bytes, again).ok()) std::abort();
  if (again.body.size() != view.body.size() || again.metadata != view.metadata) std::abort();
  return 0;
}
