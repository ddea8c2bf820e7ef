#include "rpc/server/server_call.h"

#include <exception>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "rpc/base/check.h"
#include "rpc/base/log.h"
#include "rpc/server/context_access.h"
#include "rpc/server/server_core.h"
#include "rpc/tensor/message_reader.h"

namespace verbena::internal {
namespace {

// Free calls kept per method and reactor; more are deleted. Too low: allocations under bursts.
constexpr size_t kCallsKept = 256;

void* Make(const ObjectOps& ops) {
  void* object = ::operator new(ops.bytes, std::align_val_t(ops.align));
  ops.construct(object);
  return object;
}

void Unmake(const ObjectOps& ops, void* object) {
  ops.destroy(object);
  ::operator delete(object, std::align_val_t(ops.align));
}

// Of an exception's text; the rest is not logged.
constexpr size_t kWhatBytesMax = 512;

// Inside a catch block.
std::string WhatWasThrown() {
  try {
    throw;
  } catch (const std::exception& e) {
    return absl::Utf8SafeCHexEscape(absl::string_view(e.what()).substr(0, kWhatBytesMax));
  } catch (...) {
    return "what is no std::exception";
  }
}

// Inside a catch block. Never the exception's own text: it may tell a stranger about the server,
// whose own log has it. A handler that goes on throwing is logged ever less often: the 1st, 2nd,
// 4th, 8th, ... time.
absl::Status HandlerThrew(ServedMethod& method) {
  const uint64_t times = method.exceptions.fetch_add(1, std::memory_order_relaxed) + 1;
  if ((times & (times - 1)) == 0) {
    VERBENA_LOG(kWarning, "the handler of ", method.info->path, " threw ", WhatWasThrown(),
                times == 1 ? "" : absl::StrCat(" (exception ", times, " of it)"));
  }
  return absl::UnknownError("the handler threw an exception");
}

absl::Time WallDeadline(int64_t deadline_ns) {
  if (deadline_ns == 0) return absl::InfiniteFuture();
  return absl::Now() + absl::Nanoseconds(deadline_ns - reactor::Reactor::NowNs());
}

}  // namespace

UnaryServerCall::UnaryServerCall(ServedMethod& method, reactor::Reactor& reactor)
    : method_(method),
      reactor_(reactor),
      request_(Make(*method.info->request)),
      reply_(Make(*method.info->reply)),
      run_work_(this),
      result_work_(this),
      finish_work_(this),
      reply_work_(this),
      cancel_work_(this),
      told_work_(this) {}

UnaryServerCall::~UnaryServerCall() {
  Unmake(*method_.info->request, request_);
  Unmake(*method_.info->reply, reply_);
}

UnaryServerCall* UnaryServerCall::Take(ServedMethod& method, reactor::Reactor& reactor) {
  std::vector<UnaryServerCall*>& free = method.free[reactor.index()];
  if (free.empty()) return new UnaryServerCall(method, reactor);
  UnaryServerCall* call = free.back();
  free.pop_back();
  return call;
}

void UnaryServerCall::Begin(session::Link& link, session::RequestView& request) {
  link_ = &link;
  ServerContextAccess::Begin(context_, request.method, link.info().peer, link.info().transport,
                             WallDeadline(request.deadline_ns), request.metadata);
  reader_.body = request.body;
  if (request.payloads != nullptr) reader_.payloads = std::move(request.payloads);
  status_ = method_.info->request->decode(reader_, request_);
  if (reader_.payloads != nullptr) reader_.payloads.reset();
  reactor_.RunSoon(run_work_);
}

void UnaryServerCall::Run() {
  if (status_.ok() && context_.IsCancelled()) {
    status_ = absl::CancelledError("cancelled before its handler ran");
  }
  if (!status_.ok()) {
    Finish();
  } else if (method_.info->handle_blocking != nullptr) {
    RunBlocking();
  } else {
    RunHandler();
  }
}

void UnaryServerCall::RunHandler() {
  const HandlerArgs args{*method_.service, context_, request_, reply_, StreamRef()};
  bool ended = true;
  reactor_.BeginUserCode(method_.info->path);
  try {
    task_.emplace(method_.info->handle(args));
    ended = TaskAccess::Start(
        *task_,
        [](void* self) -> std::coroutine_handle<> {
          auto* call = static_cast<UnaryServerCall*>(self);
          call->reactor_.Post(call->result_work_);
          return std::noop_coroutine();
        },
        this);
  } catch (...) {
    task_.reset();
    status_ = HandlerThrew(method_);
  }
  reactor_.EndUserCode();
  if (!ended) return;
  if (task_.has_value()) {
    TakeResult();
  } else {
    Finish();
  }
}

void UnaryServerCall::TakeResult() {
  try {
    status_ = TaskAccess::Take(*task_);
  } catch (...) {
    status_ = HandlerThrew(method_);
  }
  task_.reset();
  Finish();
}

void UnaryServerCall::RunBlocking() {
  WorkerPool::Job job = [this] {
    const HandlerArgs args{*method_.service, context_, request_, reply_, StreamRef()};
    try {
      status_ = method_.info->handle_blocking(args);
    } catch (...) {
      status_ = HandlerThrew(method_);
    }
    reactor_.Post(finish_work_);
  };
  if (method_.server->workers().Submit(job)) return;
  status_ = absl::ResourceExhaustedError(absl::StrCat(
      "all workers are busy and ", method_.server->workers().queued_max(), " blocking calls wait"));
  Finish();
}

void UnaryServerCall::Finish() {
  if (ServerContextAccess::HasWaiters(context_)) {
    ServerContextAccess::Cancel(context_);
    sleepers_left_ = ServerContextAccess::HasSleepers(context_);
  } else {
    ServerContextAccess::Mark(context_);
  }
  reactor_.PostSeat(reply_work_);
}

void UnaryServerCall::CheckTrailing() {
  absl::Status valid = ServerContextAccess::trailing(context_).Validate();
  if (valid.ok()) return;
  ServerContextAccess::DropTrailing(context_);
  if (!status_.ok()) return;  // which says more
  status_ = absl::InternalError(absl::StrCat("the handler's trailing ", valid.message()));
}

void UnaryServerCall::SendReply() {
  if (!ServerContextAccess::trailing(context_).empty()) CheckTrailing();
  if (status_.ok()) {
    writer_.Prepare(link_->info().staged_bytes_max, method_.info->reply_bytes_max);
    status_ = method_.info->reply->encode(reply_, writer_);
  }
  session::Outgoing reply = writer_.outgoing();  // taken only where the status is OK
  for (const Metadata::Pair& pair : ServerContextAccess::trailing(context_)) {
    trailing_.emplace_back(pair.first, pair.second);
  }
  reply.metadata = trailing_;
  link_->Reply(*this, status_, reply);
}

void UnaryServerCall::OnCancel(const absl::Status&, bool) {
  if (over_ || link_ == nullptr) return;
  ServerContextAccess::Mark(context_);
  if (cancel_queued_) return;
  cancel_queued_ = true;
  reactor_.RunSoon(cancel_work_);
}

void UnaryServerCall::RunCancel() {
  ServerContextAccess::Cancel(context_);
  sleepers_left_ = ServerContextAccess::HasSleepers(context_);
  reactor_.PostSeat(told_work_);
}

void UnaryServerCall::CancelTold() {
  cancel_queued_ = false;
  if (over_) Recycle();
}

void UnaryServerCall::OnReplyLeasesEnded() {
  over_ = true;
  if (!cancel_queued_ && !sleepers_left_) return Recycle();
  // The link may go now, and with the last one the server: which waits.
  lingers_ = true;
  method_.server->CallLingers();
  if (!cancel_queued_) Recycle();
}

void UnaryServerCall::Recycle() {
  if (sleepers_left_) {  // after them
    cancel_queued_ = true;
    reactor_.RunSoon(cancel_work_);
    return;
  }
  over_ = false;
  link_ = nullptr;
  ServerContextAccess::Reset(context_);
  if (!status_.ok()) status_ = absl::OkStatus();
  if (!trailing_.empty()) trailing_.clear();
  writer_.Reset();
  method_.info->request->reset(request_);
  method_.info->reply->reset(reply_);
  ServerCore* const waits = std::exchange(lingers_, false) ? method_.server : nullptr;
  std::vector<UnaryServerCall*>& free = method_.free[reactor_.index()];
  if (free.size() < kCallsKept) {
    free.push_back(this);
  } else {
    delete this;
  }
  if (waits != nullptr) waits->CallLeaves();
}

}  // namespace verbena::internal
