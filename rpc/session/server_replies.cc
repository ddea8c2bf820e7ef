#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"
#include "rpc/session/server_calls.h"

// Replies that could not leave at once: drained, budgeted, leased, staged, and what is left of them
// afterwards.
namespace verbena::session {

void ServerCalls::SendReply(ServerExchange& exchange) {
  if (!link_.up()) {
    EndReplied(exchange);
    return;
  }
  exchange.step = ServerExchange::Step::kBudget;
  exchange.budget_due_ns =
      link_.engine_impl().now_ns() + link_.engine_impl().admission_timeout_ns();
  link_.DueAt(exchange.budget_due_ns);
  budget_.PushBack(exchange);
  Resume();
}

void ServerCalls::Resume() {
  while (ServerExchange* exchange = budget_.front()) {
    const absl::StatusOr<bool> fits = exchange->reply->FitsBudget();
    if (!fits.ok() || !*fits || !link_.up() || !exchange->reply->StartLeases()) break;
    exchange->step = ServerExchange::Step::kLeasing;
    others_.PushBack(*exchange);
    if (LeaseGroup* const group = exchange->reply->group(); group != nullptr) {
      // Also for one that cannot leave: its peer may hold the lane or the credits back.
      group->SetAgeMax(link_.engine_impl().now_ns() + link_.reply_lease_age_max_ns());
    } else {
      exchange->step = ServerExchange::Step::kReady;
      ready_.PushBack(*exchange);
    }
  }
  ready_.ForEachWhile(
      [&](ServerExchange& exchange) { return !exchange.reply->usable() || StageReady(exchange); });
}

void ServerCalls::OnReplyLeased(ServerExchange& exchange) {
  if (exchange.step != ServerExchange::Step::kLeasing) return;
  exchange.step = ServerExchange::Step::kReady;
  ready_.PushBack(exchange);
  Resume();
}

bool ServerCalls::StageReady(ServerExchange& exchange) {
  const uint32_t bytes = exchange.reply->RecordBytes();
  std::byte* const to = link_.writer().Reserve(bytes, SendClass::kData);
  if (to == nullptr) return false;
  Slot& slot = At(exchange.index);
  const uint8_t flags = exchange.reply->Write(to);
  wire::Store(to, wire::RecordHeader{wire::RecordType::kReply, flags, static_cast<uint16_t>(bytes),
                                     exchange.index | uint32_t{slot.generation} << 16});
  link_.engine_impl().CountSent();
  ++link_.counted.messages_sent;
  link_.writer().Staged();
  LeaseGroup* const group = exchange.reply->group();
  if (group == nullptr) {
    EndReplied(exchange);
    return true;
  }
  FreeSlot(slot);
  exchange.index = ~0u;
  ++replied_;
  exchange.step = ServerExchange::Step::kReplied;
  others_.PushBack(exchange);
  group->SetAgeMax(link_.engine_impl().now_ns() + link_.reply_lease_age_max_ns());
  return true;
}

void ServerCalls::OnReplyLeasesEnded(ServerExchange& exchange) {
  const Error error = exchange.reply->group()->error();
  exchange.reply->DropGroup();
  if (exchange.step == ServerExchange::Step::kReplied || !link_.up()) {
    EndReplied(exchange);
    return;
  }
  // They never became usable, or could not leave.
  ReplaceReply(exchange,
               error != Error::kOk
                   ? WhyNotLeased(error, "the reply's payloads")
                   : absl::UnavailableError("the client did not let the reply's payloads leave "
                                            "within their maximum age"));
  exchange.step = ServerExchange::Step::kReady;
  ready_.PushBack(exchange);
  Resume();
}

// The reply left, or never will, and nothing of it is leased.
void ServerCalls::EndReplied(ServerExchange& exchange) {
  if (exchange.index != ~0u) {
    FreeSlot(At(exchange.index));
  } else {
    --replied_;
  }
  ServerCall* const call = exchange.call;
  delete &exchange;
  Forget(call);
}

void ServerCalls::Expire(int64_t now_ns) {
  for (uint32_t index = 0; index < chunks_.size() * kChunkSlots; ++index) {
    if (chunks_[index / kChunkSlots] == nullptr) continue;
    Slot& slot = At(index);
    if (!slot.open || slot.cancelled || slot.deadline_ns == 0) continue;
    if (now_ns - slot.deadline_ns >= 0) {
      CancelSlot(slot, absl::DeadlineExceededError("the call's deadline passed"), false);
    } else {
      link_.DueAt(slot.deadline_ns);
    }
  }
  std::vector<ServerExchange*> late;
  budget_.ForEach([&](ServerExchange& exchange) {
    if (now_ns - exchange.budget_due_ns >= 0) {
      late.push_back(&exchange);
    } else {
      link_.DueAt(exchange.budget_due_ns);
    }
  });
  for (ServerExchange* exchange : late) {
    ReplaceReply(*exchange, absl::ResourceExhaustedError(absl::StrCat(
                                "no room for the reply's payloads within announced_bytes_max (",
                                link_.engine_impl().options().announced_bytes_max, " bytes)")));
  }
  if (!late.empty()) Resume();
}

void ServerCalls::CancelAll(const absl::Status& why) {
  std::vector<ServerExchange*> unsent;
  for (List<ServerExchange>* list : {&budget_, &ready_}) {
    list->ForEach([&](ServerExchange& exchange) { unsent.push_back(&exchange); });
  }
  for (ServerExchange* exchange : unsent) {
    LeaseGroup* const group = exchange->reply->group();
    if (group != nullptr && exchange->step == ServerExchange::Step::kReady)
      continue;  // with its leases
    EndReplied(*exchange);
  }
  for (uint32_t index = 0; index < chunks_.size() * kChunkSlots; ++index) {
    if (chunks_[index / kChunkSlots] == nullptr) continue;
    if (At(index).open) CancelSlot(At(index), why, true);
  }
}

}  // namespace verbena::session
