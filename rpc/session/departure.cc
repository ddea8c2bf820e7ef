#include "rpc/session/departure.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/memory/device_regions.h"
#include "rpc/memory/pool.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {
namespace {

// What an entry will take once its keys are known.
wire::PayloadEntry EmptyEntry(uint64_t ticket, uint64_t bytes, const memory::Region* region) {
  wire::PayloadEntry entry;
  entry.ticket = ticket;
  entry.bytes = bytes;
  if (region != nullptr) {
    const ::verbena::Device where = region->device().where();
    entry.device_kind = static_cast<uint8_t>(where.kind());
    entry.device_index = static_cast<uint16_t>(where.index());
  }
  if (bytes != 0) {
    entry.lanes = 1;
    entry.pieces.push_back({0, bytes});
    entry.keys.resize(1);
  }
  return entry;
}

}  // namespace

absl::Status Departure::Capture(const Outgoing& message, const absl::Status* status,
                                uint64_t wide_timeout_us) {
  const size_t metadata_bytes = wire::MetadataBytes(message.metadata);
  if (metadata_bytes > limits::kMetadataBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "metadata of ", metadata_bytes, " bytes; the limit is ", limits::kMetadataBytesMax));
  }
  if (message.payloads.size() >= limits::kPayloadsMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        message.payloads.size(), " payloads; the limit is ", limits::kPayloadsMax - 1));
  }
  wide_timeout_us_ = wide_timeout_us;
  if (status != nullptr) status_ = *status;
  metadata_.reserve(message.metadata.size());
  for (const auto& [key, value] : message.metadata)
    metadata_.emplace_back(std::string(key), std::string(value));
  for (const auto& [key, value] : metadata_) metadata_view_.emplace_back(key, value);
  if (status_.ok()) {
    if (message.body.size() > link_.inline_bytes_max()) {
      LeaseBody(message);
    }
    for (const OutgoingPayload& payload : message.payloads) {
      if (payload.bytes != 0 && payload.region == nullptr) {
        return absl::InvalidArgumentError(
            absl::StrCat("a payload of ", payload.bytes, " bytes in no region"));
      }
      table_.push_back(EmptyEntry(payload.ticket, payload.bytes, payload.region.get()));
      lease_of_.push_back(payload.bytes == 0 ? kNoLease : LeasePayload(payload, table_.back()));
      if (payload.bytes != 0 && payload.after != nullptr) group_->Await(payload.after);
    }
    if (!body_leased_) body_.assign(message.body.begin(), message.body.end());
  }
  if (RecordBytes() > link_.writer().record_bytes_max()) return LeaseHead();
  return absl::OkStatus();
}

size_t Departure::LeasePayload(const OutgoingPayload& payload, wire::PayloadEntry& entry) {
  absl::InlinedVector<std::pair<const memory::Region*, wire::PayloadPiece>, 4> pieces;
  const auto begin = static_cast<uint64_t>(payload.data - payload.region->base());
  uint64_t at = 0;
  for (const memory::RegionRef& part : memory::PartsOf(*payload.region)) {
    const uint64_t from = std::max(at, begin);
    at += part->bytes();
    const uint64_t to = std::min(at, begin + payload.bytes);
    if (from < to) pieces.push_back({part.get(), {0, to - from}});
  }
  // Of more, the owner's device copies to stages.
  if (pieces.size() < 2 || pieces.size() > limits::kPiecesMax) {
    return AddLease(payload.region, payload.data, payload.bytes);
  }
  entry.pieces.clear();
  entry.keys.resize(pieces.size());
  if (group_ == nullptr) group_ = std::make_unique<LeaseGroup>(link_, owner_);
  const std::byte* data = payload.data;
  for (uint32_t i = 0; i < pieces.size(); ++i) {
    const auto& [part, piece] = pieces[i];
    // It has all that the payload's own region keeps.
    group_->Add(memory::RegionRef(payload.region, part), data, piece.bytes, i,
                static_cast<uint32_t>(pieces.size()));
    entry.pieces.push_back(piece);
    data += piece.bytes;
  }
  return group_->count() - pieces.size();
}

void Departure::LeaseBody(const Outgoing& message) {
  const size_t bytes = message.body.size();
  body_leased_ = true;
  table_.push_back(EmptyEntry(0, bytes, message.body_region.get()));
  if (message.body_region != nullptr) {
    body_lease_ = AddLease(message.body_region, message.body.data(), bytes);
    return;
  }
  if (message.body_heap == nullptr) body_block_ = memory::TryAllocateBlock(bytes);
  if (body_block_) {
    std::memcpy(body_block_.data(), message.body.data(), bytes);
    body_lease_ = AddLease(body_block_.region(), body_block_.data(), bytes);
    return;
  }
  std::shared_ptr<std::byte[]> source;
  if (message.body_heap != nullptr) {
    source = *message.body_heap;
  } else {
    source.reset(new std::byte[bytes]);
    std::memcpy(source.get(), message.body.data(), bytes);
  }
  Grow(
      bytes,
      [source = std::move(source), bytes](std::byte* to) { std::memcpy(to, source.get(), bytes); },
      body_block_, body_lease_);
}

absl::Status Departure::LeaseHead() {
  head_bytes_ = wire::SectionsBytes(Parts());
  if (head_bytes_ > limits::kMessageHeadBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("metadata, status and payload table of ",
                                                     head_bytes_, " bytes; the limit is ",
                                                     limits::kMessageHeadBytesMax));
  }
  head_leased_ = true;
  head_block_ = memory::TryAllocateBlock(head_bytes_);
  if (head_block_) {
    head_lease_ = AddLease(head_block_.region(), head_block_.data(), head_bytes_);
  } else {
    Grow(head_bytes_, nullptr, head_block_, head_lease_);
  }
  return absl::OkStatus();
}

void Departure::Grow(uint64_t bytes, Growing::Fill fill, memory::Block& into, size_t& lease) {
  growing_bytes_ += bytes;
  auto then = [this, bytes, &into, &lease](absl::StatusOr<memory::Block> block) {
    if (!block.ok()) return owner_.OnNoMemory(block.status());  // the end of this object
    growing_bytes_ -= bytes;
    into = *std::move(block);
    lease = AddLease(into.region(), into.data(), bytes);
    link_.OnBudget();  // may be its end too
  };
  growing_.push_back(Growing::Start(link_.engine_impl(), bytes, std::move(then), std::move(fill)));
}

Departure::~Departure() {
  for (const std::shared_ptr<Growing>& growing : growing_) growing->Abandon();
}

size_t Departure::AddLease(const memory::RegionRef& region, const std::byte* data, uint64_t bytes) {
  if (group_ == nullptr) group_ = std::make_unique<LeaseGroup>(link_, owner_);
  group_->Add(region, data, bytes);
  return group_->count() - 1;
}

absl::StatusOr<bool> Departure::FitsBudget() const {
  const uint64_t bytes = (group_ == nullptr ? 0 : group_->bytes()) + growing_bytes_;
  const uint64_t budget = link_.engine_impl().options().announced_bytes_max;
  if (bytes > budget) {
    return absl::ResourceExhaustedError(
        absl::StrCat("payloads of ", bytes, " bytes; announced_bytes_max is ", budget));
  }
  return growing_bytes_ == 0 && (bytes == 0 || bytes <= budget - link_.announced_bytes);
}

wire::MessageParts Departure::Parts() const {
  wire::MessageParts parts;
  parts.wide_timeout_us = wide_timeout_us_;
  parts.status = status_.ok() ? nullptr : &status_;
  parts.metadata = metadata_view_;
  parts.table = table_;
  parts.body_leased = body_leased_;
  parts.body = body_;
  return parts;
}

void Departure::FillKeys(wire::PayloadEntry& entry, size_t lease) const {
  entry.lease = group_->name(lease);
  for (size_t piece = 0; piece < entry.keys.size(); ++piece) {
    entry.keys[piece] = group_->key(lease + piece).words;
  }
  entry.key_generation = link_.lanes().owner_lane().generation & wire::kKeyGenerationMask;
}

wire::PayloadEntry Departure::HeadEntry() const {
  return EmptyEntry(0, head_bytes_, head_block_.region().get());
}

uint32_t Departure::RecordBytes() const {
  const size_t sections =
      head_leased_ ? wire::EntryBytes(HeadEntry()) : wire::SectionsBytes(Parts());
  // Saturates: the caller compares it with a frame.
  return static_cast<uint32_t>(
      std::min<size_t>(wire::RoundUp8(fixed_bytes() + sections), UINT32_MAX));
}

uint8_t Departure::Write(std::byte* record) {
  const size_t payloads_at = body_leased_ ? 1 : 0;
  if (body_leased_) FillKeys(table_[0], body_lease_);
  for (size_t i = 0; i < lease_of_.size(); ++i) {
    if (lease_of_[i] != kNoLease) FillKeys(table_[payloads_at + i], lease_of_[i]);
  }
  if (group_ != nullptr) group_->SetAnnounced();
  const wire::MessageParts parts = Parts();
  if (head_leased_) {
    wire::PayloadEntry entry = HeadEntry();
    FillKeys(entry, head_lease_);
    wire::EncodeEntry(entry, record + fixed_bytes());
    return static_cast<uint8_t>(wire::EncodeSections(parts, head_block_.data()) |
                                wire::kFlagHeadLeased);
  }
  const size_t bytes = fixed_bytes() + wire::SectionsBytes(parts);
  const size_t padding = wire::RoundUp8(bytes) - bytes;
  std::memset(record + bytes, 0, padding);
  return static_cast<uint8_t>(wire::EncodeSections(parts, record + fixed_bytes()) | padding);
}

}  // namespace verbena::session
