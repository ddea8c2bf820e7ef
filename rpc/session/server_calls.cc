#include "rpc/session/server_calls.h"

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/wire/control.h"

namespace verbena::session {

ServerExchange::~ServerExchange() {
  if (set != nullptr) set->set_watcher(nullptr);
  if (arrival != nullptr && !arrival->ended()) arrival.release()->Detach();
}

void ServerExchange::OnLeased() { calls.OnReplyLeased(*this); }
void ServerExchange::OnLeasesEnded() { calls.OnReplyLeasesEnded(*this); }
void ServerExchange::OnNoMemory(const absl::Status& why) { calls.OnNoMemory(*this, why); }
uint64_t ServerExchange::BodyBytesMax() { return body_bytes_max; }
void ServerExchange::OnArrived(const absl::Status& status) { calls.OnArrived(*this, status); }
void ServerExchange::OnSetDrained() { calls.OnSetDrained(*this); }

ServerCalls::~ServerCalls() { VERBENA_DCHECK(live() == 0, live(), " calls live"); }

inline ServerCalls::Slot* ServerCalls::FindOpen(uint32_t word) {
  const uint32_t index = word & 0xffff;
  const uint32_t chunk = index / kChunkSlots;
  if (chunk >= chunks_.size() || chunks_[chunk] == nullptr) return nullptr;
  Slot& slot = At(index);
  return slot.open && slot.generation == word >> 16 ? &slot : nullptr;
}

void ServerCalls::AddChunk(uint32_t chunk) {
  if (chunk >= chunks_.size()) chunks_.resize(chunk + 1);
  chunks_[chunk] = std::make_unique<Slot[]>(kChunkSlots);
}

// Null: out of range or taken.
inline ServerCalls::Slot* ServerCalls::OpenSlot(uint32_t index) {
  if (index >= open_max_) return nullptr;
  const uint32_t chunk = index / kChunkSlots;
  if (chunk >= chunks_.size() || chunks_[chunk] == nullptr) [[unlikely]]
    AddChunk(chunk);
  Slot& slot = At(index);
  if (slot.open) return nullptr;
  slot.open = true;
  slot.cancelled = false;
  slot.deadline_ns = 0;
  ++open_;
  return &slot;
}

inline absl::Status ServerCalls::WhyRefused(uint32_t method, size_t body_bytes) const {
  if (link_.method_cookie(method) == nullptr) [[unlikely]]
    return absl::UnimplementedError(absl::StrCat("unknown method ", link_.method_path(method)));
  const uint64_t bytes_max = link_.request_bytes_max(method);
  if (body_bytes > bytes_max) [[unlikely]] {
    return absl::ResourceExhaustedError(
        absl::StrCat("a request of ", body_bytes, " bytes; the limit is ", bytes_max));
  }
  return absl::OkStatus();
}

inline void ServerCalls::Give(Slot& slot, uint32_t index, uint32_t method, RequestView& request) {
  request.method = link_.method_path(method);
  request.method_cookie = link_.method_cookie(method);
  request.deadline_ns = slot.deadline_ns;
  delivering_ = index;
  ServerCall* const call = link_.sink()->OnRequest(link_, request);
  if (delivering_ != index) return;  // answered inline
  delivering_ = ~0u;
  call->link_ = &link_;
  call->slot_ = index;
  slot.call = call;
  // The link may have been closed by the sink itself.
  if (!link_.up() && !slot.cancelled) [[unlikely]]
    CancelSlot(slot, link_.DownStatus(), true);
}

void ServerCalls::OnRequest(wire::RecordHeader header, absl::Span<const std::byte> record) {
  const uint32_t index = header.word & 0xffff;
  const uint64_t words = wire::Load<uint64_t>(record.data() + 8);
  const uint32_t method = static_cast<uint32_t>(words);
  const uint32_t timeout_us = static_cast<uint32_t>(words >> 32);
  if (!link_.KnowsMethod(method)) [[unlikely]] {
    return link_.Violate(absl::InvalidArgumentError(
        absl::StrCat("a request for method ", method, ", which was never defined")));
  }
  Slot* const slot = OpenSlot(index);
  if (slot == nullptr) [[unlikely]] {
    return link_.Violate(absl::InvalidArgumentError(absl::StrCat(
        "a request in call slot ", index, ", which is taken or not below ", open_max_)));
  }
  slot->generation = static_cast<uint16_t>(header.word >> 16);
  if (timeout_us != 0) {
    slot->deadline_ns = link_.engine_impl().now_ns() + int64_t{timeout_us} * 1000;
    link_.DueAt(slot->deadline_ns);
  }
  if ((header.flags & ~wire::kPaddingMask) != 0) {
    DeliverSlow(index, method, record);
    return;
  }
  RequestView& request = link_.engine_impl().plain_request();
  request.body =
      record.subspan(wire::kRequestHeaderBytes, header.bytes - wire::kRequestHeaderBytes -
                                                    (header.flags & wire::kPaddingMask));
  if (absl::Status why = WhyRefused(method, request.body.size()); !why.ok()) [[unlikely]]
    return Refuse(index, why);
  Give(*slot, index, method, request);
}

void ServerCalls::DeliverSlow(uint32_t index, uint32_t method, absl::Span<const std::byte> record) {
  const uint8_t flags = wire::Load<wire::RecordHeader>(record.data()).flags;
  void* const cookie = link_.method_cookie(method);
  if ((flags & (wire::kFlagHeadLeased | wire::kFlagBodyLeased)) != 0 && cookie != nullptr) {
    ServerExchange& exchange = ExchangeOf(At(index), index);
    exchange.step = ServerExchange::Step::kArriving;
    exchange.method = method;
    exchange.body_bytes_max = link_.request_bytes_max(method);
    exchange.arrival =
        std::make_unique<Arrival>(link_, exchange, wire::MessageKind::kRequest, record);
    exchange.arrival->Begin();
    return;
  }
  wire::MessageView decoded;
  absl::Status status = link_.DecodeInline(wire::MessageKind::kRequest, record, decoded);
  if (status.ok()) {
    RequestView request;
    request.body = decoded.body;
    request.metadata = decoded.metadata;
    if (decoded.wide_timeout_us != 0) {
      At(index).deadline_ns = link_.AfterUs(decoded.wide_timeout_us);
      link_.DueAt(At(index).deadline_ns);
    }
    status = Deliver(At(index), index, method, request, &decoded.table);
  }
  if (!status.ok()) Refuse(index, status);
}

// Hands the request to the sink. Not OK: it did not reach it.
absl::Status ServerCalls::Deliver(Slot& slot, uint32_t index, uint32_t method, RequestView& request,
                                  wire::PayloadTable* table) {
  if (absl::Status why = WhyRefused(method, request.body.size()); !why.ok()) return why;
  if (table != nullptr && !table->empty()) {
    request.payloads = PayloadSetImpl::Create(link_, std::move(*table));
    ServerExchange& exchange = ExchangeOf(slot, index);
    exchange.set = &PayloadSetImpl::Of(*request.payloads);
    exchange.set->set_watcher(&exchange);
  }
  if (slot.exchange != nullptr) slot.exchange->step = ServerExchange::Step::kRunning;
  Give(slot, index, method, request);
  return absl::OkStatus();
}

ServerExchange& ServerCalls::ExchangeOf(Slot& slot, uint32_t index) {
  if (slot.exchange == nullptr) {
    slot.exchange = new ServerExchange(*this, link_, index);
    others_.PushBack(*slot.exchange);
  }
  return *slot.exchange;
}

// Answers a request that the sink never saw.
void ServerCalls::Refuse(uint32_t index, const absl::Status& status) {
  Slot& slot = At(index);
  if (!link_.up()) {
    delete slot.exchange;
    FreeSlot(slot);
    return;
  }
  if (slot.exchange == nullptr && StageFast(slot, index, status, {})) return;
  ReplySlow(slot, index, status, {});
}

void ServerCalls::OnArrived(ServerExchange& exchange, const absl::Status& status) {
  const std::unique_ptr<Arrival> arrival = std::move(exchange.arrival);
  const uint32_t index = exchange.index;
  absl::Status result = status;
  if (result.ok() && At(index).cancelled)
    result = absl::CancelledError("the client cancelled the call");
  if (result.ok()) {
    wire::MessageView& decoded = arrival->view();
    RequestView request;
    request.body = decoded.body;
    request.body_block = std::move(arrival->body());
    request.metadata = decoded.metadata;
    if (decoded.wide_timeout_us != 0) {
      At(index).deadline_ns = link_.AfterUs(decoded.wide_timeout_us);
      link_.DueAt(At(index).deadline_ns);
    }
    wire::PayloadTable table = arrival->TakeTable();
    result = Deliver(At(index), index, exchange.method, request, &table);
  }
  if (!result.ok()) Refuse(index, result);
}

void ServerCalls::OnCancel(uint32_t word) {
  Slot* const slot = FindOpen(word);
  if (slot != nullptr)
    CancelSlot(*slot, absl::CancelledError("the client cancelled the call"), false);
}

void ServerCalls::CancelSlot(Slot& slot, const absl::Status& why, bool peer_gone) {
  if (slot.cancelled) return;
  slot.cancelled = true;
  ServerExchange* const exchange = slot.exchange;
  if (exchange != nullptr && exchange->arrival != nullptr) {
    exchange->arrival->Stop(why);
    return;
  }
  if (exchange != nullptr && exchange->set != nullptr) exchange->set->Stop(why, true);
  if (exchange != nullptr && exchange->step == ServerExchange::Step::kBudget) {
    // Nobody wants it: neither its bytes nor memory for them.
    ReplaceReply(*exchange, absl::CancelledError("the call was cancelled"));
    Resume();
    return;
  }
  if (slot.call != nullptr &&
      (exchange == nullptr || exchange->step == ServerExchange::Step::kRunning)) {
    slot.call->OnCancel(why, peer_gone);
  }
}

void ServerCalls::Reply(ServerCall& call, const absl::Status& status, const Outgoing& message) {
  uint32_t index = call.slot_;
  if (call.link_ == nullptr) {  // answered within its OnRequest
    VERBENA_CHECK(delivering_ != ~0u, "a reply to a call that the session does not know");
    index = delivering_;
    delivering_ = ~0u;
    call.link_ = &link_;
    call.slot_ = index;
    At(index).call = &call;
  }
  Slot& slot = At(index);
  VERBENA_CHECK(slot.open && slot.call == &call, "a call is answered twice");
  if (slot.exchange == nullptr && link_.up() && message.payloads.empty() && ready_.empty() &&
      StageFast(slot, index, status, message)) {
    return;
  }
  ReplySlow(slot, index, status, message);
}

// Writes the reply into the open frame and forgets the call. False: something must wait, or it does
// not fit one.
bool ServerCalls::StageFast(Slot& slot, uint32_t index, const absl::Status& status,
                            const Outgoing& message) {
  const bool plain = status.ok() && message.metadata.empty();
  if (status.ok() && message.body.size() > link_.inline_bytes_max()) return false;
  if (!plain && wire::MetadataBytes(message.metadata) > limits::kMetadataBytesMax) return false;
  const auto parts = [&] {
    wire::MessageParts all;
    if (status.ok()) {
      all.body = message.body;
    } else {
      all.status = &status;
    }
    all.metadata = message.metadata;
    return all;
  };
  const size_t exact =
      wire::kReplyHeaderBytes + (plain ? message.body.size() : wire::SectionsBytes(parts()));
  const size_t bytes = wire::RoundUp8(exact);
  if (bytes > link_.writer().record_bytes_max()) return false;
  std::byte* const to = link_.writer().Reserve(static_cast<uint32_t>(bytes), SendClass::kData);
  if (to == nullptr) return false;
  uint8_t flags = static_cast<uint8_t>(bytes - exact);
  if (flags != 0) wire::Store(to + bytes - 8, uint64_t{0});
  if (!plain) {
    flags |= wire::EncodeSections(parts(), to + wire::kReplyHeaderBytes);
  } else if (!message.body.empty()) {
    std::memcpy(to + wire::kReplyHeaderBytes, message.body.data(), message.body.size());
  }
  wire::Store(to, wire::RecordHeader{wire::RecordType::kReply, flags, static_cast<uint16_t>(bytes),
                                     index | uint32_t{slot.generation} << 16});
  ServerCall* const call = slot.call;
  FreeSlot(slot);
  link_.engine_impl().CountSent();
  ++link_.counted.messages_sent;
  link_.writer().Staged();
  if (call != nullptr) {
    call->link_ = nullptr;
    call->OnReplyLeasesEnded();
  }
  return true;
}

void ServerCalls::Forget(ServerCall* call) {
  if (call == nullptr) return;
  call->link_ = nullptr;
  call->slot_ = ~0u;
  link_.engine_impl().ReplyEndedLater(*call);
}

void ServerCalls::ReplySlow(Slot& slot, uint32_t index, const absl::Status& status,
                            const Outgoing& message) {
  ServerExchange& exchange = ExchangeOf(slot, index);
  exchange.call = slot.call;
  absl::Status answer = status;
  if (answer.ok() && slot.cancelled) answer = absl::CancelledError("the call was cancelled");
  absl::Status captured = exchange.reply->Capture(
      answer.ok() ? message : Outgoing{{}, {}, {}, message.metadata}, &answer, 0);
  if (captured.ok()) captured = exchange.reply->FitsBudget().status();
  if (!captured.ok()) ReplaceReply(exchange, captured);
  exchange.step = ServerExchange::Step::kDraining;
  if (exchange.set != nullptr)
    exchange.set->Stop(absl::CancelledError("the call was answered"), false);
  exchange.waits_for_set = exchange.set != nullptr && !exchange.set->idle();
  if (!exchange.waits_for_set) SendReply(exchange);
}

// What cannot be sent becomes the status; that always fits.
void ServerCalls::ReplaceReply(ServerExchange& exchange, const absl::Status& status) {
  exchange.ResetReply(link_);
  const absl::Status captured = exchange.reply->Capture({}, &status, 0);
  VERBENA_CHECK(captured.ok(), captured.message());
}

void ServerCalls::OnNoMemory(ServerExchange& exchange, const absl::Status& why) {
  ReplaceReply(exchange, why);
  Resume();
}

void ServerCalls::OnSetDrained(ServerExchange& exchange) {
  if (!exchange.waits_for_set) return;
  exchange.waits_for_set = false;
  SendReply(exchange);
}

}  // namespace verbena::session
