#include "rpc/wire/message.h"

#include "absl/strings/str_cat.h"
#include "rpc/wire/bad_length.h"
#include "rpc/wire/status.h"

namespace verbena::wire {
namespace {

size_t SectionBytes(size_t content) { return kSectionHeaderBytes + RoundUp8(content); }

// Writes the section's header and zeroes its padding; `content` is where the content goes, `end`
// where it ends.
std::byte* CloseSection(std::byte* header, std::byte* end, size_t count) {
  const size_t bytes = static_cast<size_t>(end - header) - kSectionHeaderBytes;
  Store(header, static_cast<uint32_t>(bytes));
  Store(header + 4, static_cast<uint32_t>(count));
  const size_t padding = RoundUp8(bytes) - bytes;
  std::memset(end, 0, padding);
  return end + padding;
}

struct Section {
  absl::Span<const std::byte> content;
  uint32_t count = 0;
};

absl::Status TakeSection(absl::Span<const std::byte>& content, Section& section) {
  if (content.size() < kSectionHeaderBytes)
    return Truncated("a section's header", kSectionHeaderBytes, content.size());
  const uint64_t bytes = Load<uint32_t>(content.data());
  section.count = Load<uint32_t>(content.data() + 4);
  if (SectionBytes(bytes) > content.size())
    return Truncated("a section", SectionBytes(bytes), content.size());
  section.content = content.subspan(kSectionHeaderBytes, bytes);
  content.remove_prefix(SectionBytes(bytes));
  return absl::OkStatus();
}

absl::Status DecodeExtra(MessageKind kind, absl::Span<const std::byte>& content,
                         MessageView& view) {
  if (kind == MessageKind::kRequest) {
    if (content.size() < sizeof(uint64_t))
      return Truncated("a timeout", sizeof(uint64_t), content.size());
    view.wide_timeout_us = Load<uint64_t>(content.data());
    content.remove_prefix(sizeof(uint64_t));
    return absl::OkStatus();
  }
  Section section;
  absl::Status status = TakeSection(content, section);
  return status.ok() ? DecodeStatus(section.content, section.count, view.status) : status;
}

}  // namespace

size_t SectionsBytes(const MessageParts& parts) {
  size_t bytes = parts.body.size();
  if (parts.wide_timeout_us != 0) bytes += sizeof(uint64_t);
  if (parts.status != nullptr) bytes += SectionBytes(StatusBytes(*parts.status));
  if (!parts.metadata.empty()) bytes += SectionBytes(MetadataBytes(parts.metadata));
  if (!parts.table.empty()) bytes += SectionBytes(TableBytes(parts.table));
  return bytes;
}

uint8_t EncodeSections(const MessageParts& parts, std::byte* to) {
  uint8_t flags = 0;
  if (parts.wide_timeout_us != 0) {
    flags |= kFlagExtra;
    Store(to, parts.wide_timeout_us);
    to += sizeof(uint64_t);
  }
  if (parts.status != nullptr) {
    flags |= kFlagExtra;
    size_t details = 0;
    std::byte* const end = EncodeStatus(*parts.status, to + kSectionHeaderBytes, details);
    to = CloseSection(to, end, details);
  }
  if (!parts.metadata.empty()) {
    flags |= kFlagMetadata;
    to = CloseSection(to, EncodeMetadata(parts.metadata, to + kSectionHeaderBytes),
                      parts.metadata.size());
  }
  if (!parts.table.empty()) {
    flags |= kFlagTable;
    to = CloseSection(to, EncodeTable(parts.table, to + kSectionHeaderBytes), parts.table.size());
  }
  if (parts.body_leased) flags |= kFlagBodyLeased;
  if (!parts.body.empty()) std::memcpy(to, parts.body.data(), parts.body.size());
  return flags;
}

absl::Status DecodeSections(MessageKind kind, uint8_t flags, absl::Span<const std::byte> content,
                            MessageView& view) {
  view.wide_timeout_us = 0;
  view.status = absl::OkStatus();
  view.metadata.clear();
  view.table.clear();
  view.body_leased = (flags & kFlagBodyLeased) != 0;
  absl::Status status;
  if ((flags & kFlagExtra) != 0) {
    status = DecodeExtra(kind, content, view);
    if (!status.ok()) return status;
  }
  Section section;
  if ((flags & kFlagMetadata) != 0) {
    status = TakeSection(content, section);
    if (status.ok()) status = DecodeMetadata(section.content, section.count, view.metadata);
    if (!status.ok()) return status;
  }
  if ((flags & kFlagTable) != 0) {
    status = TakeSection(content, section);
    if (status.ok()) status = DecodeTable(section.content, section.count, view.table);
    if (!status.ok()) return status;
  }
  if (view.body_leased && (view.table.empty() || !content.empty())) {
    return absl::InvalidArgumentError(absl::StrCat(
        "a leased body with a payload table of ", view.table.size(), " entries and a body of ",
        content.size(), " bytes beside it; it is the first entry, and there is no other"));
  }
  view.body = content;
  return absl::OkStatus();
}

}  // namespace verbena::wire
