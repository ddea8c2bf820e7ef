#include "rpc/session/payload_set.h"

#include "rpc/base/check.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {
namespace {

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

}  // namespace

bool EngineGate::RunInSeat(reactor::Work& work, EngineImpl** engine) {
  EngineImpl* target;
  {
    absl::MutexLock lock(&mutex_);
    if (engine_ == nullptr) return false;
    target = engine_;
    ++users_;
  }
  if (engine != nullptr) *engine = target;
  // Without the lock: what runs in the seat meanwhile may come here again.
  target->RunInSeat(work);
  absl::MutexLock lock(&mutex_);
  --users_;
  return true;
}

void EngineGate::Close() {
  absl::MutexLock lock(&mutex_);
  engine_ = nullptr;
  mutex_.Await(absl::Condition(
      +[](int* users) { return *users == 0; }, &users_));
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
                      static_cast<ReleaseWork*>(work)->set->Stop(
                          absl::CancelledError("the payloads were released"), true);
                    }),
      drop_work_(this,
                 [](reactor::Work* work) { static_cast<ReleaseWork*>(work)->set->DropInSeat(); }) {
  transport_ = link.fabric().traits().name;
  entries_.reserve(table_.size());
  for (const wire::PayloadEntry& entry : table_) {
    entries_.push_back({entry.ticket, entry.bytes, WhereOf(entry)});
  }
  link.sets.PushBack(*this);
}

PayloadSetImpl::~PayloadSetImpl() {
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
  Stop(absl::CancelledError("the payloads were released"), true);
  dropped_ = true;  // only now: the end of the last transfer would delete it under Stop
  if (idle()) delete this;
}

void PayloadSetImpl::Stop(const absl::Status& why, bool tell) {
  tell_ = tell_ || tell;
  if (!stopped_) {
    stopped_ = true;
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

bool PayloadSetImpl::Owns(uint64_t lease) const {
  for (const wire::PayloadEntry& entry : table_) {
    if (entry.lease == lease && lease != 0) return true;
  }
  return false;
}

void PayloadSetImpl::TakeKey(uint64_t lease, const wire::Key& key, uint32_t generation) {
  for (wire::PayloadEntry& entry : table_) {
    if (entry.lease != lease || entry.pieces.size() != 1) continue;
    entry.keys[0] = key;
    entry.key_generation = generation & wire::kKeyGenerationMask;
  }
}

void PayloadSetImpl::OnLinkGone() {
  Unlink();
  link_ = nullptr;
}

}  // namespace verbena::session
