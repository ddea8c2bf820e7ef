#include "rpc/client/unary_operation.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/client/channel_core.h"
#include "rpc/memory/pool.h"
#include "rpc/tensor/fetch_operation.h"
#include "verbena/status.h"

namespace verbena::internal {

// This thread's free operations. They are kept constructed: their vectors are reused with them.
// Trivially destructible, so that operations can end while the thread's other objects die.
struct OperationPool {
  // Per thread; more are freed. Too low: allocations when many calls are in flight.
  static constexpr uint32_t kKept = 256;

  struct Closer {
    ~Closer() {
      pool.closed = true;
      while (pool.first != nullptr) delete std::exchange(pool.first, pool.first->next_waiting);
    }
  };
  static UnaryOperation* Take() {
    UnaryOperation* const operation = pool.first;
    if (operation == nullptr) return new UnaryOperation;
    pool.first = std::exchange(operation->next_waiting, nullptr);
    --pool.count;
    return operation;
  }
  static void Give(UnaryOperation* operation) {
    static thread_local Closer closer;  // made at the first of a thread
    (void)closer;
    if (pool.closed || pool.count >= kKept) [[unlikely]] {
      delete operation;
      return;
    }
    operation->next_waiting = pool.first;
    pool.first = operation;
    ++pool.count;
  }

  UnaryOperation* first = nullptr;  // by next_waiting
  uint32_t count = 0;
  bool closed = false;
  static constinit thread_local OperationPool pool;
};
constinit thread_local OperationPool OperationPool::pool;

UnaryOperation* UnaryOperation::New(ChannelCore& channel) {
  UnaryOperation* operation = OperationPool::Take();
  operation->Restart(channel.reactor());
  operation->channel_ = &channel;
  operation->report_.peer = channel.interned_target();
  operation->report_.transport = {};
  return operation;
}

void UnaryOperation::Recycle() {
  writer_.Reset();
  if (extras_) RecycleExtras();
  link_given_ = nullptr;
  started_ = false;
  OperationPool::Give(this);
}

void UnaryOperation::RecycleExtras() {
  extras_ = false;
  if (reader_.payloads != nullptr) {
    reader_.payloads->Release();
    reader_.payloads.reset();
  }
  reader_.placed.clear();
  reply_block_.Reset();
  reply_heap_.reset();
  rare_.reset();
  report_.trailing_metadata.clear();
  early_cancel_ = absl::OkStatus();
}

UnaryOperation::StartWork::StartWork(UnaryOperation* o)
    : Work([](reactor::Work* work) {
        UnaryOperation* self = static_cast<StartWork*>(work)->operation;
        self->channel_->StartInSeat(*self);
      }),
      operation(o) {}

absl::Status UnaryOperation::SetRare(const CallOptions::Rare& rare) {
  absl::Status valid = rare.metadata.Validate();
  if (!valid.ok()) return valid;
  extras_ = true;
  rare_ = std::make_unique<Rare>();
  rare_->metadata = rare.metadata.pairs();
  size_t bytes = 0;
  for (const Metadata::Pair& pair : rare_->metadata) {
    rare_->metadata_view.emplace_back(pair.first, pair.second);
    bytes += pair.first.size() + pair.second.size();
  }
  if (bytes > limits::kMetadataBytesMax) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "the call's metadata has ", bytes, " bytes; the limit is ", limits::kMetadataBytesMax));
  }
  rare_->placement = rare.reply_placement;
  if (rare.cancellation.stop_possible()) {
    rare_->stop.emplace(rare.cancellation, StopFunction{this});
  }
  return absl::OkStatus();
}

void UnaryOperation::GiveTo(session::Link& link, absl::string_view transport) {
  started_ = true;
  link_given_ = &link;
  report_.transport = transport;
  session::Outgoing request = writer_.outgoing();
  if (rare_ != nullptr) request.metadata = rare_->metadata_view;
  link.StartCall(*this, request);
}

void UnaryOperation::OnReply(session::ReplyView& reply) {
  link_given_ = nullptr;
  const size_t bytes = reply.body.size();
  const bool plain = bytes <= kInlineReplyBytes && reply.status->ok() &&
                     reply.payloads == nullptr && !reply.body_block &&
                     reply.trailing_metadata.empty() && rare_ == nullptr;
  if (!plain) return OnRareReply(reply);
  if (bytes != 0) std::memcpy(small_reply_.data(), reply.body.data(), bytes);
  reader_.body = {small_reply_.data(), bytes};
  ChannelCore* const channel = channel_;
  Complete();
  channel->OnCallEnded();
}

void UnaryOperation::OnRareReply(session::ReplyView& reply) {
  if (!reply.trailing_metadata.empty()) extras_ = true;
  for (const auto& [key, value] : reply.trailing_metadata) {
    report_.trailing_metadata.Add(key, value);
  }
  if (!reply.status->ok()) {
    Finish(*reply.status);
    return;
  }
  KeepBody(reply);
  if (rare_ == nullptr || !PlaceReply()) Finish(absl::OkStatus());
}

void UnaryOperation::KeepBody(session::ReplyView& reply) {
  if (reply.payloads != nullptr) {
    extras_ = true;
    reader_.payloads = std::move(reply.payloads);
  }
  if (reply.body_block) {
    extras_ = true;
    reader_.body = reply.body;
    reply_block_ = std::move(reply.body_block);
    return;
  }
  std::byte* to = small_reply_.data();
  if (reply.body.size() > kInlineReplyBytes) {
    extras_ = true;
    reply_block_ = memory::TryAllocateBlock(reply.body.size());
    if (!reply_block_) reply_heap_.reset(new std::byte[reply.body.size()]);
    to = reply_block_ ? reply_block_.data() : reply_heap_.get();
  }
  if (!reply.body.empty()) std::memcpy(to, reply.body.data(), reply.body.size());
  reader_.body = {to, reply.body.size()};
}

namespace {

// A transfer for each payload, into the caller's destinations or into new memory: `placed`.
absl::Status PlanPlacements(const session::PayloadSet& payloads, const Placement& placement,
                            FetchPlan& plan, std::vector<Buffer>& placed) {
  VERBENA_ASSIGN_OR_RETURN(placed, PlaceAll(payloads, placement));
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, memory::FindDevice(placement.device()));
  for (size_t i = 0; i < placed.size(); ++i) {
    plan.Follow(placement);
    plan.AddTransfer(static_cast<uint32_t>(i), 0, device, placed[i].mutable_data(),
                     placed[i].bytes(), placement.destination(i) != nullptr);
    plan.Keep(placed[i]);
  }
  return absl::OkStatus();
}

}  // namespace

bool UnaryOperation::PlaceReply() {
  if (!rare_->placement.has_value() || reader_.payloads == nullptr) return false;
  FetchOperation* fetch = FetchOperation::New(reader_.payloads);
  rare_->placing = fetch;
  const auto placed = std::make_shared<std::vector<Buffer>>();
  fetch->set_finish([this, placed](absl::Status status) {
    OnPlaced(status, placed.get());
    return status;
  });
  // The call may end before the growth thread has done this.
  fetch->StartAfter(
      [placed, payloads = reader_.payloads, placement = *rare_->placement](FetchPlan& plan) {
        return PlanPlacements(*payloads, placement, plan, *placed);
      });
  return true;
}

void UnaryOperation::OnPlaced(const absl::Status& status, std::vector<Buffer>* buffers) {
  report_.path = rare_->placing->report().path;
  std::exchange(rare_->placing, nullptr)->Unref();
  if (status.ok()) {
    reader_.placed = std::move(*buffers);
    reader_.payloads->Release();
  }
  Finish(status);
}

void UnaryOperation::OnCancel(const absl::Status& why) {
  if (rare_ != nullptr && rare_->placing != nullptr) {
    rare_->placing->Cancel(why.code(), why.message());
  } else if (link_given_ != nullptr) {
    link_given_->CancelCall(*this, why);
  } else if (waiting) {
    channel_->Forget(*this);
    Finish(why);
  } else if (!started_) {
    extras_ = true;
    early_cancel_ = why;
  }
}

void UnaryOperation::Finish(absl::Status status) {
  if (rare_ != nullptr) rare_->stop.reset();
  ChannelCore* channel = channel_;
  Complete(std::move(status));
  channel->OnCallEnded();
}

void UnaryOperation::ReleaseKept() { writer_.Reset(); }

}  // namespace verbena::internal
