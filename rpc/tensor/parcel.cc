// What a Parcel does with descriptors: attaching, packing for the wire, binding what was received.
#include "verbena/parcel.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/str_cat.h"
#include "google/protobuf/message_lite.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/reactor/operation.h"
#include "rpc/tensor/descriptor.h"
#include "rpc/tensor/message_reader.h"
#include "rpc/tensor/message_writer.h"
#include "rpc/tensor/parcel_table.h"
#include "verbena/service.h"

namespace verbena::internal {
namespace {

bool IsOf(uint64_t ticket, uint64_t stamp, const ParcelTable* table) {
  return stamp != 0 && table != nullptr && (ticket & ~kSlotMask) == stamp &&
         (ticket & kSlotMask) >= 1 && (ticket & kSlotMask) <= table->count();
}

// Puts `buffer` into the slot that `ticket` names if it is this parcel's, else into a new one.
// Returns the ticket.
uint64_t Put(ParcelBase& parcel, uint64_t ticket, Buffer buffer) {
  uint64_t& stamp = ParcelAccess::Stamp(parcel);
  ParcelTable*& table = ParcelAccess::Table(parcel);
  if (stamp == 0) stamp = NewStamp();
  if (table == nullptr) table = ParcelTable::New();
  if (IsOf(ticket, stamp, table)) {
    table->Set(ticket & kSlotMask, std::move(buffer));
    return ticket;
  }
  ParcelSlot slot;
  slot.local = std::move(buffer);
  slot.here = true;
  const uint64_t number = table->Add(std::move(slot));
  VERBENA_CHECK(number <= kSlotMask, "a parcel holds at most ", kSlotMask, " tensors");
  return stamp | number;
}

// Sender: every descriptor must name a slot of the parcel that is here.
class Packer final : public DescriptorVisitor {
 public:
  Packer(const ParcelBase& parcel, MessageWriter& out)
      : stamp_(ParcelAccess::Stamp(parcel)), table_(ParcelAccess::Table(parcel)), out_(out) {}
  void Visit(const v1::Tensor& tensor, const char* field) override {
    See(tensor.ticket(), field);
    if (status_.ok() && DType::FromWord(tensor.dtype()).bits() == 0) {
      status_ = absl::FailedPreconditionError(
          absl::StrCat(field, ": what was attached is no tensor, it has no dtype"));
    }
  }
  void Visit(const v1::Buffer& buffer, const char* field) override { See(buffer.ticket(), field); }
  const absl::Status& status() const { return status_; }

 private:
  void See(uint64_t ticket, const char* field) {
    if (!status_.ok()) return;
    if (ticket == 0) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(field, " is set but has no tensor: call Attach on it"));
      return;
    }
    if (!IsOf(ticket, stamp_, table_)) {
      status_ = absl::InvalidArgumentError(absl::StrCat(
          field, " was copied from another parcel: Fetch the tensor there and Attach it here"));
      return;
    }
    const ParcelSlot slot = table_->Get(ticket & kSlotMask);
    if (!slot.here) {
      status_ = absl::InvalidArgumentError(
          absl::StrCat(field, " was received and not fetched: Fetch it, then Attach the result"));
      return;
    }
    if (slot.local.bytes() == 0) return;  // nothing to read: the receiver knows by the descriptor
    const uint64_t slot_number = ticket & kSlotMask;
    if (slot_number / 64 >= seen_.size()) seen_.resize(slot_number / 64 + 1);
    uint64_t& seen = seen_[slot_number / 64];
    const uint64_t bit = uint64_t{1} << slot_number % 64;
    if ((seen & bit) != 0) return;  // named twice, travels once
    seen |= bit;
    status_ = out_.AddPayload(ticket, slot.local, field);
  }

  const uint64_t stamp_;
  ParcelTable* const table_;
  MessageWriter& out_;
  absl::InlinedVector<uint64_t, 4> seen_;  // a bit for each slot
  absl::Status status_;
};

// Receiver: every ticket is checked against what came, and rewritten to the new parcel's stamp.
class Binder final : public DescriptorVisitor {
 public:
  Binder(uint64_t stamp, ParcelTable& table, absl::Span<const session::PayloadSet::Entry> entries)
      : stamp_(stamp), table_(table), entries_(entries) {}
  // The parcel owns the message, so its descriptors are not const objects.
  void Visit(const v1::Tensor& tensor, const char* field) override {
    const auto empty = [&tensor] {
      const absl::StatusOr<Layout> layout = LayoutOf(tensor, 0);
      return layout.ok() && layout->bytes() == 0;
    };
    const_cast<v1::Tensor&>(tensor).set_ticket(See(tensor.ticket(), empty, field));
  }
  void Visit(const v1::Buffer& buffer, const char* field) override {
    const auto empty = [&buffer] { return buffer.bytes() == 0; };
    const_cast<v1::Buffer&>(buffer).set_ticket(See(buffer.ticket(), empty, field));
  }
  const absl::Status& status() const { return status_; }

 private:
  uint64_t See(uint64_t ticket, absl::FunctionRef<bool()> empty, const char* field) {
    if (!status_.ok()) return 0;
    const size_t index = ticket == 0 ? entries_.size() : IndexOf(ticket);
    if (index < entries_.size()) return stamp_ | (index + 1);
    if (ticket != 0 && empty()) {
      ParcelSlot slot;
      slot.here = true;
      return stamp_ | table_.Add(std::move(slot));
    }
    status_ = absl::InvalidArgumentError(
        absl::StrCat(field, ": the peer's message names a payload that it did not send"));
    return 0;
  }

  // Of the first payload with the ticket; past the end: none has it. The peer decides how many
  // payloads there are and how often each is named.
  size_t IndexOf(uint64_t ticket) {
    if (entries_.size() <= kFewEntries) {
      size_t index = 0;
      while (index < entries_.size() && entries_[index].ticket != ticket) ++index;
      return index;
    }
    if (sorted_.empty()) {
      for (size_t i = 0; i < entries_.size(); ++i) sorted_.emplace_back(entries_[i].ticket, i);
      std::sort(sorted_.begin(), sorted_.end());
    }
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), std::pair(ticket, size_t{0}));
    return it != sorted_.end() && it->first == ticket ? it->second : entries_.size();
  }

  static constexpr size_t kFewEntries = 16;  // looked through as they are
  const uint64_t stamp_;
  ParcelTable& table_;
  absl::Span<const session::PayloadSet::Entry> entries_;
  std::vector<std::pair<uint64_t, size_t>> sorted_;  // tickets and their places
  absl::Status status_;
};

}  // namespace

ParcelBase& ParcelBase::operator=(ParcelBase&& other) noexcept {
  if (this != &other) {
    Release();
    stamp_ = std::exchange(other.stamp_, 0);
    table_ = std::exchange(other.table_, nullptr);
  }
  return *this;
}

void ParcelBase::Attach(v1::Tensor& descriptor, Tensor tensor) {
  Describe(tensor, descriptor);
  const ByteSpan span = SpanOf(tensor);
  Buffer bytes;
  if (span.bytes != 0) {
    absl::StatusOr<Buffer> part = tensor.buffer().Slice(span.offset, span.bytes);
    VERBENA_CHECK(part.ok(), part.status().ToString());  // a Tensor lies within its buffer
    bytes = *std::move(part);
  }
  descriptor.set_ticket(Put(*this, descriptor.ticket(), std::move(bytes)));
}

void ParcelBase::Attach(v1::Buffer& descriptor, Buffer buffer) {
  descriptor.set_bytes(buffer.bytes());
  descriptor.set_ticket(Put(*this, descriptor.ticket(), std::move(buffer)));
}

void ParcelBase::Release() {
  ParcelTable* table = std::exchange(table_, nullptr);
  if (table == nullptr) return;
  // Dropping them releases them too, with one visit to the reactor instead of two.
  if (table->payloads() != nullptr && !table->IsLastOfPayloads()) table->payloads()->Release();
  table->Unref();
}

absl::Status WriteParcel(const ParcelBase& parcel, const TypedMessage& message,
                         MessageWriter& out) {
  Packer packer(parcel, out);
  message.visit(message.typed, packer);
  if (!packer.status().ok()) return packer.status();
  return WriteMessage(*message.message, out);
}

absl::Status ReadMessage(MessageReader& in, google::protobuf::MessageLite& message) {
  if (in.body.size() > limits::kMessageBytesHighest) [[unlikely]] {
    return absl::ResourceExhaustedError(absl::StrCat("the peer's message has ", in.body.size(),
                                                     " bytes; protobuf's limit is ",
                                                     limits::kMessageBytesHighest));
  }
  if (!message.ParseFromArray(in.body.data(), static_cast<int>(in.body.size()))) {
    return absl::InternalError(
        absl::StrCat("the peer's ", in.body.size(), " bytes are not a ", message.GetTypeName()));
  }
  return absl::OkStatus();
}

absl::Status ReadParcel(MessageReader& in, ParcelBase& parcel,
                        google::protobuf::MessageLite& message, const TypedMessage& typed) {
  parcel.Release();
  absl::Status status = ReadMessage(in, message);
  ParcelTable* table = ParcelTable::New();
  absl::Span<const session::PayloadSet::Entry> entries;
  if (in.payloads != nullptr) entries = in.payloads->entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    ParcelSlot slot;
    slot.entry = static_cast<uint32_t>(i);
    slot.here = i < in.placed.size();
    if (slot.here) slot.local = std::move(in.placed[i]);
    table->Add(std::move(slot));
  }
  table->set_payloads(std::move(in.payloads));
  in.placed.clear();
  ParcelAccess::Stamp(parcel) = NewStamp();
  ParcelAccess::Table(parcel) = table;
  if (status.ok()) {
    Binder binder(ParcelAccess::Stamp(parcel), *table, entries);
    typed.visit(typed.typed, binder);
    status = binder.status();
  }
  if (!status.ok()) parcel.Release();
  return status;
}

absl::Status TakeMessage(Operation& operation, google::protobuf::MessageLite& message) {
  MessageReader* reader = operation.reader();
  VERBENA_CHECK(reader != nullptr, "this operation yields no message");
  absl::Status status = ReadMessage(*reader, message);
  operation.ReleaseKept();
  return status;
}

absl::Status TakeParcel(Operation& operation, ParcelBase& parcel,
                        google::protobuf::MessageLite& message, const TypedMessage& typed) {
  MessageReader* reader = operation.reader();
  VERBENA_CHECK(reader != nullptr, "this operation yields no message");
  absl::Status status = ReadParcel(*reader, parcel, message, typed);
  operation.ReleaseKept();
  return status;
}

}  // namespace verbena::internal
