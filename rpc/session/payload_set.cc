#include "rpc/session/payload_set.h"

#include "rpc/base/check.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {
namespace {

// Made once: it is given with every set, and mostly nobody is there to hear it.
const absl::Status& Released() {
  static const absl::Status* const status =
      new absl::Status(absl::CancelledError("the payloads were released"));
  return *status;
}

}  // namespace

::verbena::Device WhereOf(const wire::PayloadEntry& entry) {
  switch (static_cast<::verbena::Device::Kind>(entry.device_kind)) {
    case ::verbena::Device::Kind::kCuda:
      return ::verbena::Device::Cuda(entry.device_index);
    case ::verbena::Device::Kind::kFake:
      return ::verbena::Device::Fake(entry.device_index);
    case ::verbena::Device::Kind::kHost:
      break;
  }
  return ::verbena::Device::Host();
}

bool EngineGate::RunInSeat(reactor::Work& work, EngineImpl** engine) {
  const bool open = (state_.fetch_add(1, std::memory_order_acquire) & kClosed) == 0;
  if (open) {
    if (engine != nullptr) *engine = engine_;
    engine_->RunInSeat(work);
  }
  if (state_.fetch_sub(1, std::memory_order_release) == (kClosed | 1)) state_.notify_all();
  return open;
}

void EngineGate::Close() {
  state_.fetch_or(kClosed);
  for (uint32_t now = state_.load(); now != kClosed; now = state_.load()) state_.wait(now);
}

PayloadSetRef PayloadSetImpl::Create(LinkImpl& link, wire::PayloadTable table) {
  return PayloadSetRef(new PayloadSetImpl(link, std::move(table)), &PayloadSetImpl::Drop);
}

PayloadSetImpl::PayloadSetImpl(LinkImpl& link, wire::PayloadTable table)
    : engine_(link.engine_impl()),
      gate_(engine_.gate()),
      link_(&link),
      table_(std::move(table)),
      release_work_(this,
                    [](reactor::Work* work) {
                      static_cast<ReleaseWork*>(work)->set->Stop(Released(), true);
                    }),
      drop_work_(this,
                 [](reactor::Work* work) { static_cast<ReleaseWork*>(work)->set->DropInSeat(); }) {
  transport_ = link.fabric().traits().name;
  entries_.reserve(table_.size());
  for (const wire::PayloadEntry& entry : table_) {
    entries_.push_back({entry.ticket, entry.bytes, WhereOf(entry)});
  }
  link.sets.PushBack(*this);
  AddNames();
}

PayloadSetImpl::~PayloadSetImpl() {
  if (link_ != nullptr) link_->names.Remove(absl::MakeSpan(table_));
  if (watcher_ != nullptr) watcher_->OnSetGone();
}

void PayloadSetImpl::Release() {
  if (release_asked_.exchange(true)) return;
  gate_->RunInSeat(release_work_);
}

void PayloadSetImpl::Drop(PayloadSet* set) {
  PayloadSetImpl* const self = static_cast<PayloadSetImpl*>(set);
  const std::shared_ptr<EngineGate> gate = self->gate_;  // outlives `self`
  if (!gate->RunInSeat(self->drop_work_)) delete self;
}

void PayloadSetImpl::DropInSeat() {
  Stop(Released(), true);
  dropped_ = true;  // only now: the end of the last transfer would delete it under Stop
  if (idle()) delete this;
}

void PayloadSetImpl::Stop(const absl::Status& why, bool tell) {
  tell_ = tell_ || tell;
  if (!stopped_) {
    stopped_ = true;
    why_ = why;
    if (link_ != nullptr) link_->transfers().StopAllOf(*this, why);
  }
  if (idle()) Drained();
}

void PayloadSetImpl::Drained() {
  if (tell_ && !told_ && link_ != nullptr) {
    for (const wire::PayloadEntry& entry : table_) {
      if (entry.lease == 0) continue;
      link_->SendLeaseRecord(wire::RecordType::kRelease, entry.lease, true);
      break;
    }
    told_ = true;
  }
}

void PayloadSetImpl::OnTransferEnded() {
  VERBENA_DCHECK(transfers_ > 0);
  if (--transfers_ != 0 || !stopped_) return;
  Drained();
  if (watcher_ != nullptr) watcher_->OnSetDrained();
  if (dropped_) delete this;
}

void PayloadSetImpl::AddNames() {
  link_->names.Add({this, nullptr, nullptr}, absl::MakeSpan(table_));
}

void PayloadSetImpl::OnLinkGone() {
  Unlink();
  link_->names.Remove(absl::MakeSpan(table_));
  link_ = nullptr;
}

}  // namespace verbena::session
