#include "rpc/session/arrival.h"

#include <algorithm>
#include <memory>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/memory/pool.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

Arrival::Arrival(LinkImpl& link, ArrivalOwner& arrival_owner, wire::MessageKind kind,
                 absl::Span<const std::byte> record)
    : link_(link),
      owner_(&arrival_owner),
      kind_(kind),
      flags_(wire::Load<wire::RecordHeader>(record.data()).flags),
      record_(record.begin(), record.end()) {
  link.arrivals.push_back(this);
}

void Arrival::Begin() {
  absl::Status status = BeginHead();
  if (status.ok()) return;
  failure_ = std::move(status);
  step_ = Step::kFailed;
  link_.engine_impl().DoneLater(*this, failure_);
}

absl::Status Arrival::BeginHead() {
  const size_t fixed =
      kind_ == wire::MessageKind::kRequest ? wire::kRequestHeaderBytes : wire::kReplyHeaderBytes;
  absl::Span<const std::byte> content = absl::MakeConstSpan(record_).subspan(fixed);
  content.remove_suffix(flags_ & wire::kPaddingMask);
  if ((flags_ & wire::kFlagHeadLeased) == 0) {
    absl::Status status = DecodeFrom(content);
    AddNames();
    return status.ok() ? BeginBody() : status;
  }
  absl::Status status = wire::DecodeEntry(content, head_entry_);
  if (!status.ok()) return status;
  if (head_entry_.bytes == 0 || head_entry_.bytes > limits::kMessageHeadBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat("metadata, status and payload table of ",
                                                     head_entry_.bytes, " bytes; the limit is ",
                                                     limits::kMessageHeadBytesMax));
  }
  step_ = Step::kHead;
  head_begun_ = true;
  link_.names.HeadBegins();
  AddNames();
  return Read(head_entry_, head_);
}

absl::Status Arrival::DecodeFrom(absl::Span<const std::byte> content) {
  return wire::DecodeSections(kind_, flags_, content, view_);
}

absl::Status Arrival::BeginBody() {
  step_ = Step::kBody;
  if (!view_.body_leased) {
    link_.engine_impl().DoneLater(*this, absl::OkStatus());
    return absl::OkStatus();
  }
  const uint64_t bytes = view_.table[0].bytes;
  const uint64_t bytes_max = owner_->BodyBytesMax();
  if (bytes > bytes_max) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", bytes, " bytes; the limit is ", bytes_max));
  }
  return Read(view_.table[0], body_);
}

absl::Status Arrival::Read(const wire::PayloadEntry& from, memory::Block& into) {
  const uint64_t budget = link_.engine_impl().options().fetching_bytes_max;
  if (from.bytes > budget - std::min(budget, link_.arriving_bytes)) {
    return absl::ResourceExhaustedError(
        absl::StrCat("a message of ", from.bytes, " bytes beside ", link_.arriving_bytes,
                     " that arrive; fetching_bytes_max is ", budget));
  }
  counted_bytes_ += from.bytes;
  link_.arriving_bytes += from.bytes;
  into = memory::TryAllocateBlock(from.bytes);
  if (into) {
    StartRead(from, into);
    return absl::OkStatus();
  }
  growing_ = Growing::Start(link_.engine_impl(), from.bytes,
                            [this, &from, &into](absl::StatusOr<memory::Block> block) {
                              OnGrown(from, into, std::move(block));
                            });
  return absl::OkStatus();
}

void Arrival::OnGrown(const wire::PayloadEntry& from, memory::Block& into,
                      absl::StatusOr<memory::Block> block) {
  growing_.reset();
  absl::Status status = block.status();
  if (status.ok() && !link_.up()) status = link_.DownStatus();
  if (!status.ok()) {
    link_.engine_impl().DoneLater(*this, std::move(status));
    return;
  }
  into = *std::move(block);
  StartRead(from, into);
}

void Arrival::StartRead(const wire::PayloadEntry& from, memory::Block& into) {
  offset = 0;
  pieces.clear();
  pieces.push_back({&memory::HostDevice(), into.data(), from.bytes});
  link_.transfers().Start(*this, from, nullptr);
}

void Arrival::OnDone(const absl::Status& status) {
  if (!status.ok() || owner_ == nullptr) {
    End(status);
    return;
  }
  absl::Status next;
  if (step_ == Step::kHead) {
    ReleaseOne(head_entry_.lease);
    next = DecodeFrom({head_.data(), head_entry_.bytes});
    link_.names.GiveKept(absl::MakeSpan(view_.table));
    LeaveHead();
    AddNames();
    if (next.ok()) next = BeginBody();
    if (next.ok()) return;
  } else if (view_.body_leased) {
    ReleaseOne(view_.table[0].lease);
    view_.body = {body_.data(), view_.table[0].bytes};
  }
  End(next);
}

void Arrival::LeaveHead() {
  if (std::exchange(head_begun_, false)) link_.names.HeadEnds();
}

void Arrival::ReleaseOne(uint64_t lease) {
  link_.SendLeaseRecord(wire::RecordType::kRelease, lease, false);
}

void Arrival::End(const absl::Status& status) {
  ended_ = true;
  link_.arriving_bytes -= counted_bytes_;
  LeaveHead();
  link_.names.Remove({&head_entry_, 1});
  link_.names.Remove(absl::MakeSpan(view_.table));
  link_.Forget(*this);
  if (owner_ != nullptr) {
    owner_->OnArrived(status);
    return;
  }
  if (AnyLease() != 0) link_.SendLeaseRecord(wire::RecordType::kRelease, AnyLease(), true);
  delete this;
}

void Arrival::Stop(const absl::Status& why) {
  if (growing_ != nullptr) {
    growing_->Abandon();
    growing_.reset();
    link_.engine_impl().DoneLater(*this, why);
  } else if (!ended_) {
    Transfers::Cancel(*this, why);
  }
}

void Arrival::Detach() {
  owner_ = nullptr;
  Stop(absl::CancelledError("the call ended"));
}

wire::PayloadTable Arrival::TakeTable() {
  wire::PayloadTable table = std::move(view_.table);
  if (view_.body_leased && !table.empty()) table.erase(table.begin());
  return table;
}

uint64_t Arrival::AnyLease() const {
  // The last first: head and body may have been released on their own.
  for (size_t i = view_.table.size(); i-- > 0;) {
    if (view_.table[i].lease != 0) return view_.table[i].lease;
  }
  return head_entry_.lease;
}

void Arrival::AddNames() {
  const LeaseNames::Place owner{nullptr, this, nullptr};
  link_.names.Add(owner, {&head_entry_, 1});
  link_.names.Add(owner, absl::MakeSpan(view_.table));
}

}  // namespace verbena::session
