#include "rpc/tensor/fetch_operation.h"

#include <atomic>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "rpc/base/fork.h"
#include "rpc/base/log.h"
#include "rpc/memory/no_growth.h"
#include "rpc/reactor/reactors.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/engine.h"

namespace verbena::internal {

FetchOperation* FetchOperation::New(session::PayloadSetRef payloads) {
  auto* operation = new FetchOperation;
  operation->Restart(payloads != nullptr ? session::Link::EngineOf(*payloads).reactor()
                                         : reactor::DefaultReactor());
  operation->payloads_ = std::move(payloads);
  return operation;
}

void FetchOperation::Start() {
  reactor::Reactor& home = reactor();
  if (home.InSeat() && !Forked()) {
    StartInSeat();
  } else {
    home.PostSeat(start_work_);
  }
}

// Shared by the operation and the job on another thread; whoever comes first at the end of the
// one's wait or of the other's work decides whether the operation gets the plan.
struct FetchOperation::Preparation {
  enum : int { kWaited, kPrepared, kAbandoned };
  Preparation(FetchOperation* o, PrepareLater p) : operation(o), prepare(std::move(p)) {}
  bool abandoned() const { return state.load(std::memory_order_relaxed) == kAbandoned; }
  void Run() {
    if (abandoned()) return;
    if (status.ok()) status = prepare(plan);
    int waited = kWaited;
    if (state.compare_exchange_strong(waited, kPrepared, std::memory_order_acq_rel)) {
      operation->reactor().PostSeat(operation->prepared_work_);
    }
  }
  // Whether nothing is awaited any more, or never will be ready.
  bool PollAwaited() {
    std::erase_if(awaited, [](const memory::ReadinessRef& after) { return after->ready(); });
    if (++looks % kLooksPerQuestion != 0) return awaited.empty();
    for (const memory::ReadinessRef& after : awaited) status.Update(after->Look());
    return awaited.empty() || !status.ok();
  }
  absl::Duration UntilNextLook() const {
    return looks < kFastLooks ? absl::Microseconds(50) : absl::Milliseconds(1);
  }
  // So many looks follow one another soon, as most kernels are over soon.
  static constexpr uint32_t kFastLooks = 40;
  // And after so many each devices are asked whether they failed, which costs calls of the driver.
  static constexpr uint32_t kLooksPerQuestion = 10;

  FetchOperation* const operation;
  PrepareLater prepare;
  std::vector<memory::ReadinessRef> awaited;
  uint32_t looks = 0;
  bool after_transfers = false;  // a copy of what they brought; the operation's plan stays
  FetchPlan plan;
  absl::Status status;
  std::atomic<int> state{kWaited};
};

bool FetchOperation::PrepareNow(absl::FunctionRef<absl::Status(FetchPlan&)> prepare) {
  {
    const memory::NoGrowth no_growth;
    prepared_ = prepare(plan_);
    if (no_growth.refused()) return false;
  }
  Start();
  return true;
}

void FetchOperation::StartGrowing(PrepareLater prepare) {
  prepared_ = absl::OkStatus();
  plan_ = FetchPlan();
  const auto growth = Preparing(std::move(prepare));
  reactor::PostGrowth([growth] { growth->Run(); });
}

void FetchOperation::StartCopying(PrepareLater copy, std::vector<memory::ReadinessRef> awaited) {
  const auto copying = Preparing(std::move(copy));
  copying->awaited = std::move(awaited);
  reactor::PostCopies([copying] { CopyWhenReady(copying); });
}

std::shared_ptr<FetchOperation::Preparation> FetchOperation::Preparing(PrepareLater prepare) {
  preparation_ = std::make_shared<Preparation>(this, std::move(prepare));
  std::shared_ptr<Preparation> preparation = preparation_;  // Start may abandon it
  Ref();
  Start();
  return preparation;
}

// Goes to the end of the queue where it has to wait: a stream that stands still keeps nobody else.
void FetchOperation::CopyWhenReady(const std::shared_ptr<Preparation>& copying) {
  if (copying->abandoned()) return;
  if (copying->PollAwaited()) return copying->Run();
  absl::SleepFor(copying->UntilNextLook());
  reactor::PostCopies([copying] { CopyWhenReady(copying); });
}

void FetchOperation::StartInSeat() {
  started_ = true;
  if (payloads_ != nullptr) report_.transport = payloads_->transport();
  if (preparation_ == nullptr) return Launch();
  if (!first_error_.ok()) {
    AbandonPreparation();
    return Launch();
  }
  if (payloads_ == nullptr) return;
  running_ = 1;
  held_.running = true;
  session::Link::HoldFetch(*payloads_, held_);
}

void FetchOperation::OnPrepared() {
  const std::shared_ptr<Preparation> preparation = std::exchange(preparation_, nullptr);
  if (preparation->after_transfers) {
    if (first_error_.ok()) first_error_ = std::move(preparation->status);
    End();
  } else if (!done()) {
    plan_ = std::move(preparation->plan);
    prepared_ = std::move(preparation->status);
    if (started_) Launch();
  }
  Unref();  // the preparation's
}

void FetchOperation::OnHeldDone(const absl::Status& status) {
  held_.running = false;
  if (preparation_ != nullptr) {
    if (first_error_.ok()) first_error_ = status;
    AbandonPreparation();
  }
  OnTransferDone(absl::OkStatus());
}

void FetchOperation::AbandonPreparation() {
  int waited = Preparation::kWaited;
  if (!preparation_->state.compare_exchange_strong(waited, Preparation::kAbandoned,
                                                   std::memory_order_acq_rel)) {
    return;  // OnPrepared comes
  }
  preparation_.reset();
  Unref();  // never the last: the flight has one
}

void FetchOperation::Launch() {
  if (first_error_.ok()) first_error_ = std::move(prepared_);
  if (plan_.local) report_.path = Path::kLocal;
  ++running_;  // the operation must not end while this loop runs
  if (first_error_.ok()) {
    const memory::StreamOrder order = plan_.copy ? memory::StreamOrder() : plan_.order;
    transfers_.reserve(plan_.transfers.size());
    for (const FetchPlan::Part& part : plan_.transfers) {
      Transfer& transfer = transfers_.emplace_back(this);
      transfer.entry = part.entry;
      transfer.offset = part.offset;
      transfer.pieces.reserve(part.pieces.size());
      for (const FetchPlan::Piece& piece : part.pieces) {
        transfer.pieces.push_back({part.device, piece.to, piece.bytes, order, plan_.require_path});
      }
      transfer.require_path = plan_.require_path;
      transfer.destination_lent = part.lent;
    }
  }
  for (Transfer& transfer : transfers_) {
    if (!first_error_.ok()) break;
    ++running_;
    transfer.running = true;
    session::Link::StartFetch(*payloads_, transfer);
  }
  if (held_.running) session::Link::CancelFetch(held_);
  OnTransferDone(absl::OkStatus());
}

void FetchOperation::Fail(const absl::Status& why) {
  if (why.ok() || !first_error_.ok()) return;
  first_error_ = why;
  OnCancel(why);  // the others are of no use
}

void FetchOperation::OnTransferDone(const absl::Status& status) {
  Fail(status);
  if (--running_ != 0) return MaybeEndEarly();
  if (ended_early_) {
    if (ended_well_ && !first_error_.ok()) {
      VERBENA_LOG(kWarning, "what a fetch ordered into a stream failed: ", first_error_.message());
    }
    plan_.kept.clear();
    payloads_.reset();
    return Unref();
  }
  if (plan_.copy && first_error_.ok()) return StartPlannedCopy();
  End();
}

void FetchOperation::End() {
  absl::Status end = RunFinish(std::move(first_error_));
  plan_.copy = nullptr;
  plan_.kept.clear();
  payloads_.reset();
  Complete(std::move(end));
}

void FetchOperation::StartPlannedCopy() {
  preparation_ = std::make_shared<Preparation>(
      this, [copy = std::exchange(plan_.copy, nullptr)](FetchPlan&) { return copy(); });
  preparation_->after_transfers = true;
  if (plan_.order.stream != nullptr) {
    absl::StatusOr<memory::ReadinessRef> queued =
        plan_.transfers.front().device->Record(plan_.order);
    preparation_->status = queued.status();
    if (queued.ok()) preparation_->awaited.push_back(*std::move(queued));
  }
  Ref();
  reactor::PostCopies([copying = preparation_] { CopyWhenReady(copying); });
}

absl::Status FetchOperation::RunFinish(absl::Status status) {
  if (plan_.finish) status = std::exchange(plan_.finish, nullptr)(std::move(status));
  if (finish_) status = std::exchange(finish_, nullptr)(std::move(status));
  return status;
}

void FetchOperation::OnTransferOrdered(const absl::Status& status) {
  Fail(status);
  ++ordered_;
  MaybeEndEarly();
}

void FetchOperation::MaybeEndEarly() {
  if (ended_early_ || ordered_ == 0 || ordered_ != running_) return;
  // What is left for the CPU to do needs the bytes, unless nobody wants them any more.
  if (first_error_.ok() && (plan_.copy || plan_.finish || finish_)) return;
  ended_early_ = true;
  ended_well_ = first_error_.ok();
  Ref();
  Complete(RunFinish(first_error_));
}

void FetchOperation::OnCancel(const absl::Status& why) {
  if (first_error_.ok()) first_error_ = why;
  if (!started_) return;  // the start is still in the inbox, and will find nothing to wait for
  if (held_.running) session::Link::CancelFetch(held_);
  if (preparation_ != nullptr && preparation_->after_transfers) {
    AbandonPreparation();
    if (preparation_ == nullptr) End();
    return;
  }
  if (preparation_ != nullptr && payloads_ == nullptr) {
    AbandonPreparation();
    if (preparation_ == nullptr) Launch();
    return;
  }
  for (Transfer& transfer : transfers_) {
    if (transfer.running) session::Link::CancelFetch(transfer);
  }
  MaybeEndEarly();  // of those that stand in the stream nothing is heard
}

absl::Status FetchOperation::TakeTensor(Tensor& tensor) {
  tensor = std::move(plan_.tensor);
  return absl::OkStatus();
}

absl::Status FetchOperation::TakeBuffer(Buffer& buffer) {
  buffer = std::move(plan_.buffer);
  return absl::OkStatus();
}

}  // namespace verbena::internal
