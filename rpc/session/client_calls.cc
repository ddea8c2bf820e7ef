#include "rpc/session/client_calls.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/wire/control.h"

namespace verbena::session {

ClientExchange::~ClientExchange() {
  if (arrival != nullptr && !arrival->ended()) arrival.release()->Detach();
}

void ClientExchange::OnLeased() { calls.OnExchangeLeased(*this); }

void ClientExchange::OnLeasesEnded() {
  const Error error = request.group()->error();
  request.DropGroup();
  if (!ending && error != Error::kOk && (step == Step::kLeasing || step == Step::kReady)) {
    ending = true;
    end_status = WhyNotLeased(error, "the payloads");
  }
  calls.Settle(*this);
}

void ClientExchange::OnNoMemory(const absl::Status& why) { calls.Cancel(*call, why); }

uint64_t ClientExchange::BodyBytesMax() {
  return call != nullptr && call->reply_bytes_max != 0 ? call->reply_bytes_max
                                                       : limits::kMessageBytesMax;
}

void ClientExchange::OnArrived(const absl::Status& status) {
  if (status.ok()) {
    reply_complete = true;
  } else {
    if (!ending) end_status = status;
    ending = true;
  }
  calls.Settle(*this);
}

ClientCalls::~ClientCalls() { VERBENA_DCHECK(live_ == 0, live_, " calls live"); }

uint32_t ClientCalls::TimeoutUs(const ClientCall& call) const {
  if (call.deadline_ns == 0) return 0;
  const int64_t left_us = (call.deadline_ns - link_.engine_impl().now_ns()) / 1000;
  return static_cast<uint32_t>(std::clamp<int64_t>(left_us, 1, UINT32_MAX));
}

uint64_t ClientCalls::WideTimeoutUs(const ClientCall& call) const {
  if (call.deadline_ns == 0) return 0;
  const int64_t left_us = (call.deadline_ns - link_.engine_impl().now_ns()) / 1000;
  return left_us > int64_t{UINT32_MAX} ? static_cast<uint64_t>(left_us) : 0;
}

inline void ClientCalls::WriteHeader(const ClientCall& call, uint32_t method, uint32_t index,
                                     uint8_t flags, uint32_t bytes, std::byte* to) {
  const uint32_t word = index | uint32_t{At(index).generation} << 16;
  wire::Store(to, wire::RecordHeader{wire::RecordType::kRequest, flags,
                                     static_cast<uint16_t>(bytes), word});
  wire::Store(to + 8, uint64_t{method} | uint64_t{TimeoutUs(call)} << 32);
  link_.engine_impl().CountSent();
  ++link_.counted.messages_sent;
}

inline void ClientCalls::Open(ClientCall& call, ClientExchange* exchange, uint32_t index) {
  Slot& slot = At(index);
  slot.call = &call;
  slot.exchange = exchange;
  slot.open = true;
  ++open_;
  call.link_ = &link_;
  call.exchange_ = exchange;
  call.slot_ = index;
  if (call.deadline_ns != 0) link_.DueAt(call.deadline_ns);
}

inline uint32_t ClientCalls::TakeSlot() {
  const uint32_t index = free_;
  if (index != ~0u) {
    free_ = At(index).next_free;
    return index;
  }
  return NewSlot();
}

uint32_t ClientCalls::NewSlot() {
  if (used_ == chunks_.size() * kChunkSlots)
    chunks_.push_back(std::make_unique<Slot[]>(kChunkSlots));
  return used_++;
}

inline void ClientCalls::FreeSlot(Slot& slot, uint32_t index) {
  slot.call = nullptr;
  slot.exchange = nullptr;
  slot.open = false;
  ++slot.generation;
  slot.next_free = free_;
  free_ = index;
  --open_;
}

inline ClientCalls::Slot* ClientCalls::FindOpen(uint32_t word) {
  const uint32_t index = word & 0xffff;
  if (index >= used_) return nullptr;
  Slot& slot = At(index);
  return slot.open && slot.generation == word >> 16 ? &slot : nullptr;
}

void ClientCalls::Start(ClientCall& call, const Outgoing& request) {
  VERBENA_DCHECK(call.link_ == nullptr, "a call is started twice");
  if (!link_.accepts_calls()) {
    Fail(call, link_.DownStatus());
    return;
  }
  if (request.payloads.empty() && request.body.size() <= link_.inline_bytes_max() &&
      ready_.empty() && open_ < open_max_ && StageFast(call, request)) {
    return;
  }
  StartSlow(call, request);
}

// Writes the request into the open frame. False: something must wait, or it does not fit one.
bool ClientCalls::StageFast(ClientCall& call, const Outgoing& request) {
  const uint64_t wide_timeout_us = call.deadline_ns != 0 ? WideTimeoutUs(call) : 0;
  const bool plain = request.metadata.empty() && wide_timeout_us == 0;
  if (!plain && wire::MetadataBytes(request.metadata) > limits::kMetadataBytesMax) return false;
  const auto parts = [&] {
    wire::MessageParts all;
    all.wide_timeout_us = wide_timeout_us;
    all.metadata = request.metadata;
    all.body = request.body;
    return all;
  };
  const size_t exact =
      wire::kRequestHeaderBytes + (plain ? request.body.size() : wire::SectionsBytes(parts()));
  const size_t bytes = wire::RoundUp8(exact);
  if (bytes > link_.writer().record_bytes_max()) return false;
  const uint32_t method = link_.DefineMethod(call.method);
  if (method == 0) return false;
  std::byte* const to = link_.writer().Reserve(static_cast<uint32_t>(bytes), SendClass::kData);
  if (to == nullptr) return false;
  const uint32_t index = TakeSlot();
  Open(call, nullptr, index);
  ++live_;
  uint8_t flags = static_cast<uint8_t>(bytes - exact);
  if (flags != 0) wire::Store(to + bytes - 8, uint64_t{0});
  if (!plain) {
    flags |= wire::EncodeSections(parts(), to + wire::kRequestHeaderBytes);
  } else if (!request.body.empty()) {
    std::memcpy(to + wire::kRequestHeaderBytes, request.body.data(), request.body.size());
  }
  WriteHeader(call, method, index, flags, static_cast<uint32_t>(bytes), to);
  link_.writer().Staged();
  return true;
}

void ClientCalls::StartSlow(ClientCall& call, const Outgoing& request) {
  if (MethodPath(call.method).empty() ||
      MethodPath(call.method).size() > limits::kMethodPathBytesMax) {
    Fail(call, absl::InvalidArgumentError(
                   absl::StrCat("a method path of ", MethodPath(call.method).size(),
                                " bytes; 1 to ", limits::kMethodPathBytesMax, " are possible")));
    return;
  }
  if (!link_.PromiseMethod(call.method)) {
    Fail(call, absl::ResourceExhaustedError(absl::StrCat(
                   "this link has called ", limits::kMethodsPerLinkMax, " methods, the limit")));
    return;
  }
  auto exchange = std::make_unique<ClientExchange>(*this, link_, call);
  absl::Status status = exchange->request.Capture(request, nullptr, WideTimeoutUs(call));
  if (status.ok()) status = exchange->request.FitsBudget().status();
  if (!status.ok()) {
    exchange.reset();
    Fail(call, status);
    return;
  }
  ++live_;
  call.link_ = &link_;
  call.exchange_ = exchange.get();
  if (call.deadline_ns != 0) link_.DueAt(call.deadline_ns);
  budget_.PushBack(*exchange.release());
  Resume();
}

void ClientCalls::Resume() {
  while (ClientExchange* exchange = budget_.front()) {
    const absl::StatusOr<bool> fits = exchange->request.FitsBudget();
    if (!fits.ok() || !*fits || !link_.accepts_calls() || !exchange->request.StartLeases()) break;
    exchange->step = ClientExchange::Step::kLeasing;
    others_.PushBack(*exchange);
    if (exchange->request.group() == nullptr) OnExchangeLeased(*exchange);
  }
  // No further than to the first that must wait: thousands may be behind it.
  ready_.ForEachWhile([&](ClientExchange& exchange) {
    return !exchange.request.usable() || (open_ != open_max_ && StageReady(exchange));
  });
}

void ClientCalls::OnExchangeLeased(ClientExchange& exchange) {
  if (exchange.ending) return;
  exchange.step = ClientExchange::Step::kReady;
  ready_.PushBack(exchange);
  if (exchange.request.group() != nullptr) Resume();
}

bool ClientCalls::StageReady(ClientExchange& exchange) {
  const uint32_t method = link_.DefineMethod(exchange.call->method);
  if (method == 0) return false;
  const uint32_t bytes = exchange.request.RecordBytes();
  std::byte* const to = link_.writer().Reserve(bytes, SendClass::kData);
  if (to == nullptr) return false;
  const uint32_t index = TakeSlot();
  const bool keep = exchange.request.group() != nullptr;
  Open(*exchange.call, keep ? &exchange : nullptr, index);
  const uint8_t flags = exchange.request.Write(to);
  WriteHeader(*exchange.call, method, index, flags, bytes, to);
  link_.writer().Staged();
  if (!keep) {
    delete &exchange;
    return true;
  }
  exchange.step = ClientExchange::Step::kSent;
  exchange.slot = index;
  others_.PushBack(exchange);
  return true;
}

void ClientCalls::OnReply(wire::RecordHeader header, absl::Span<const std::byte> record) {
  Slot* const slot = FindOpen(header.word);
  if (slot == nullptr) {
    link_.engine_impl().CountUnknownCall();
    return;
  }
  const uint32_t index = header.word & 0xffff;
  ClientCall* const call = slot->call;
  const bool plain = (header.flags & ~wire::kPaddingMask) == 0;
  if (!plain || slot->exchange != nullptr || call == nullptr) {
    ReplySlow(*slot, index, header, record);
    return;
  }
  FreeSlot(*slot, index);
  --live_;
  call->link_ = nullptr;
  ReplyView& view = link_.engine_impl().plain_reply();
  view.status = &link_.engine_impl().ok_status();
  view.body = record.subspan(wire::kReplyHeaderBytes, header.bytes - wire::kReplyHeaderBytes -
                                                          (header.flags & wire::kPaddingMask));
  if (call->reply_bytes_max != 0 && view.body.size() > call->reply_bytes_max) {
    DeliverTooLarge(*call, view.body.size());
    return;
  }
  call->OnReply(view);
}

void ClientCalls::DeliverTooLarge(ClientCall& call, uint64_t bytes) {
  const absl::Status status = absl::ResourceExhaustedError(
      absl::StrCat("a reply of ", bytes, " bytes; the limit is ", call.reply_bytes_max));
  ReplyView view;
  view.status = &status;
  call.OnReply(view);
}

void ClientCalls::ReplySlow(Slot& slot, uint32_t index, wire::RecordHeader header,
                            absl::Span<const std::byte> record) {
  ClientExchange* exchange = slot.exchange;
  ClientCall* const call = slot.call;
  FreeSlot(slot, index);
  if (exchange != nullptr) {
    exchange->slot = ~0u;
    exchange->step = ClientExchange::Step::kReplied;
    if (exchange->request.group() != nullptr) exchange->request.group()->End();
  }
  if (call == nullptr || (exchange != nullptr && exchange->ending)) {
    DropReply(header, record);
    if (exchange != nullptr) Settle(*exchange);
    return;
  }
  call->slot_ = ~0u;
  const bool reads = (header.flags & (wire::kFlagHeadLeased | wire::kFlagBodyLeased)) != 0;
  const bool waits = exchange != nullptr && exchange->request.group() != nullptr;
  if (!reads && !waits && exchange == nullptr) {
    wire::MessageView& decoded = link_.engine_impl().scratch_view();
    absl::Status status = link_.DecodeInline(wire::MessageKind::kReply, record, decoded);
    if (!status.ok()) decoded.status = std::move(status);
    --live_;
    call->link_ = nullptr;
    ReplyView view;
    if (decoded.status.ok() && call->reply_bytes_max != 0 &&
        decoded.body.size() > call->reply_bytes_max) {
      DropTable(decoded.table);
      DeliverTooLarge(*call, decoded.body.size());
      return;
    }
    view.status = &decoded.status;
    if (decoded.status.ok()) view.body = decoded.body;
    if (!decoded.table.empty())
      view.payloads = PayloadSetImpl::Create(link_, std::move(decoded.table));
    view.trailing_metadata = decoded.metadata;
    call->OnReply(view);
    return;
  }
  if (exchange == nullptr) {
    exchange = new ClientExchange(*this, link_, *call);
    exchange->step = ClientExchange::Step::kReplied;
    call->exchange_ = exchange;
    others_.PushBack(*exchange);
  }
  exchange->arrival =
      std::make_unique<Arrival>(link_, *exchange, wire::MessageKind::kReply, record);
  exchange->arrival->Begin();
}

void ClientCalls::DropTable(absl::Span<const wire::PayloadEntry> table) {
  for (const wire::PayloadEntry& payload : table) {
    if (payload.lease == 0) continue;
    link_.SendLeaseRecord(wire::RecordType::kRelease, payload.lease, true);
    return;
  }
}

// The reply of a call that has ended: its leases go back at once.
void ClientCalls::DropReply(wire::RecordHeader header, absl::Span<const std::byte> record) {
  if ((header.flags & wire::kFlagHeadLeased) != 0) {
    absl::Span<const std::byte> content = record.subspan(wire::kReplyHeaderBytes);
    wire::PayloadEntry head;
    if (wire::DecodeEntry(content, head).ok()) DropTable({&head, 1});
  } else if ((header.flags & wire::kFlagTable) != 0) {
    wire::MessageView& decoded = link_.engine_impl().scratch_view();
    if (link_.DecodeInline(wire::MessageKind::kReply, record, decoded).ok())
      DropTable(decoded.table);
  }
}

// Whatever an exchange waited for has come: ends its call if nothing is missing.
void ClientCalls::Settle(ClientExchange& exchange) {
  if (exchange.request.group() != nullptr) return;
  if (exchange.ending) {
    EndExchange(exchange, exchange.end_status);
  } else if (exchange.reply_complete) {
    Deliver(exchange);
  }
}

// By value: what is deleted here may hold it.
void ClientCalls::EndExchange(ClientExchange& exchange, absl::Status why) {
  ClientCall* const call = exchange.call;
  if (exchange.slot != ~0u) {
    Slot& slot = At(exchange.slot);
    slot.exchange = nullptr;
    slot.call = nullptr;
  }
  // A reply that was READ, or was about to be, and is not wanted.
  if (exchange.arrival != nullptr && exchange.arrival->ended() &&
      exchange.arrival->AnyLease() != 0) {
    link_.SendLeaseRecord(wire::RecordType::kRelease, exchange.arrival->AnyLease(), true);
  }
  delete &exchange;
  --live_;
  Fail(*call, why);
}

void ClientCalls::Fail(ClientCall& call, const absl::Status& why) {
  call.link_ = nullptr;
  call.exchange_ = nullptr;
  call.slot_ = ~0u;
  link_.engine_impl().FailLater(call, why);
}

void ClientCalls::Deliver(ClientExchange& exchange) {
  ClientCall* const call = exchange.call;
  const std::unique_ptr<Arrival> arrival = std::move(exchange.arrival);
  delete &exchange;
  --live_;
  call->link_ = nullptr;
  call->exchange_ = nullptr;
  wire::MessageView& decoded = arrival->view();
  ReplyView view;
  view.status = &decoded.status;
  if (decoded.status.ok()) {
    view.body = decoded.body;
    view.body_block = std::move(arrival->body());
  }
  wire::PayloadTable table = arrival->TakeTable();
  if (!table.empty()) view.payloads = PayloadSetImpl::Create(link_, std::move(table));
  view.trailing_metadata = decoded.metadata;
  call->OnReply(view);
}

void ClientCalls::Cancel(ClientCall& call, const absl::Status& why) {
  if (call.link_ == nullptr) return;
  ClientExchange* const exchange = static_cast<ClientExchange*>(call.exchange_);
  if (exchange == nullptr) {
    link_.SendCancel(call.slot_ | uint32_t{At(call.slot_).generation} << 16);
    At(call.slot_).call = nullptr;
    --live_;
    Fail(call, why);
    return;
  }
  if (exchange->ending || exchange->reply_complete) return;
  exchange->ending = true;
  exchange->end_status = why;
  if (exchange->arrival != nullptr && !exchange->arrival->ended())
    exchange->arrival.release()->Detach();
  LeaseGroup* const group = exchange->request.group();
  if (exchange->slot != ~0u) {
    link_.SendCancel(exchange->slot | uint32_t{At(exchange->slot).generation} << 16);
    if (group != nullptr)
      group->Ask(link_.engine_impl().now_ns(), link_.engine_impl().revoke_grace_ns());
  } else if (group != nullptr && exchange->step != ClientExchange::Step::kBudget) {
    group->End();
  } else {
    exchange->request.DropGroup();
  }
  if (exchange->step != ClientExchange::Step::kReplied) others_.PushBack(*exchange);
  Settle(*exchange);
}

void ClientCalls::Expire(int64_t now_ns) {
  const absl::Status late = absl::DeadlineExceededError("the call's deadline passed");
  const auto check = [&](ClientCall& call) {
    if (call.deadline_ns == 0) return;
    if (now_ns - call.deadline_ns >= 0) {
      Cancel(call, late);
    } else {
      link_.DueAt(call.deadline_ns);
    }
  };
  for (uint32_t i = 0; i < used_; ++i) {
    Slot& slot = At(i);
    if (slot.open && slot.call != nullptr && slot.exchange == nullptr) check(*slot.call);
  }
  for (List<ClientExchange>* list : {&budget_, &ready_, &others_}) {
    std::vector<ClientCall*> calls;
    list->ForEach([&](ClientExchange& exchange) {
      if (!exchange.ending) calls.push_back(exchange.call);
    });
    for (ClientCall* call : calls) check(*call);
  }
}

void ClientCalls::FailWaiting(const absl::Status& why) {
  std::vector<ClientCall*> calls;
  for (List<ClientExchange>* list : {&budget_, &ready_, &others_}) {
    list->ForEach([&](ClientExchange& exchange) {
      if (!exchange.ending && exchange.step < ClientExchange::Step::kSent)
        calls.push_back(exchange.call);
    });
  }
  for (ClientCall* call : calls) Cancel(*call, why);
}

void ClientCalls::FailAll(const absl::Status& why) {
  for (uint32_t i = 0; i < used_; ++i) {
    Slot& slot = At(i);
    if (!slot.open || slot.call == nullptr || slot.exchange != nullptr) continue;
    ClientCall& call = *slot.call;
    FreeSlot(slot, i);
    --live_;
    Fail(call, why);
  }
  std::vector<ClientCall*> calls;
  for (List<ClientExchange>* list : {&budget_, &ready_, &others_}) {
    list->ForEach([&](ClientExchange& exchange) {
      if (!exchange.ending) calls.push_back(exchange.call);
    });
  }
  for (ClientCall* call : calls) Cancel(*call, why);
}

}  // namespace verbena::session
