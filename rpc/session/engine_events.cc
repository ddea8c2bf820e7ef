// What the fabrics report, and work that comes from or goes to other threads.
#include <algorithm>
#include <memory>

#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

void EngineImpl::OnFrame(LinkId id, absl::Span<const std::byte> frame) {
  LinkImpl* const link = Find(id);
  if (link == nullptr) return;
  ++counters_.frames_received;
  link->OnFrame(frame);
}

void EngineImpl::OnSendable(LinkId id) {
  LinkImpl* const link = Find(id);
  if (link != nullptr) link->OnSendable();
}

void EngineImpl::OnLeased(LeaseSlot slot, Error error, const fabric::RemoteKey& key) {
  Lease* const lease = leases_.Find(slot);
  if (lease != nullptr) lease->group->OnLeased(slot, error, key);
}

void EngineImpl::OnRevoked(LeaseSlot slot) {
  Lease* const lease = leases_.Find(slot);
  if (lease == nullptr) return;
  LinkImpl& link = lease->group->link();
  lease->group->OnRevoked(slot);
  link.OnBudget();
}

void EngineImpl::OnReadPath(ReadSlot slot, Path path) {
  const PostedRead* const read = reads_.Find(slot);
  if (read != nullptr) Transfers::OnReadPath(*read, path);
}

void EngineImpl::OnReadOrdered(ReadSlot slot) {
  PostedRead* const read = reads_.Find(slot);
  if (read == nullptr) return;
  read->transfer->link->transfers().OnReadOrdered(*read);
  PumpWaiting();
}

void EngineImpl::OnReadDone(ReadSlot slot, Error error) {
  const PostedRead* const found = reads_.Find(slot);
  if (found == nullptr) return;
  const PostedRead read = *found;
  LinkImpl& link = *read.transfer->link;
  reads_.Remove(slot);  // first: what happens next may need the slot
  link.transfers().OnReadDone(read, error);
  PumpWaiting();
}

void EngineImpl::PumpWaiting() {
  // The first need not have anything to post any more.
  while (!waiting_for_reads_.empty() && !reads_full()) {
    LinkImpl* const next = waiting_for_reads_.front();
    waiting_for_reads_.erase(waiting_for_reads_.begin());
    next->transfers().Pump();
  }
}

void EngineImpl::OnLaneDown(LinkId id, Lane lane, Error cause) {
  LinkImpl* const link = Find(id);
  if (link != nullptr) link->lanes().OnFabricLaneDown(lane, cause);
}

void EngineImpl::OnLinkEnding(LinkId id, const absl::Status& cause) {
  LinkImpl* const link = Find(id);
  if (link != nullptr) link->OnLinkEnding(cause);
}

void EngineImpl::OnLinkDown(LinkId id, const absl::Status& cause) {
  LinkImpl* const link = Find(id);
  if (link != nullptr) link->OnLinkDown(cause);
}

void EngineImpl::NotifyLater(LeaseGroup& group) {
  if (group.notify_queued) return;
  group.notify_queued = true;
  later_ = true;
  notify_.push_back(&group);
}

void EngineImpl::Forget(LeaseGroup& group) {
  for (std::vector<LeaseGroup*>* list : {&notify_, &notifying_}) {
    for (LeaseGroup*& queued : *list) {
      if (queued == &group) queued = nullptr;
    }
  }
  ForgetAwaiting(group);
}

void EngineImpl::ForgetAwaiting(const ReadyWaiter& waiter) {
  for (ReadyWaiter*& awaiting : awaiting_) {
    if (awaiting == &waiter) awaiting = nullptr;
  }
  const bool none = std::all_of(awaiting_.begin(), awaiting_.end(),
                                [](const ReadyWaiter* awaiting) { return awaiting == nullptr; });
  if (none) reactor_.Cancel(awaiting_timer_);
}

void EngineImpl::LaneFailedLater(LinkImpl& link) {
  later_ = true;
  lane_failed_.push_back(&link);
}

void EngineImpl::ExpectRelease(uint64_t bytes) {
  // As fast as a copy from memory is here. Longer than the limit, and the wake-up no longer
  // matters.
  constexpr uint64_t kBytesPerNs = 4;
  constexpr uint64_t kExpectNsMax = 2'000'000;
  const auto time_ns = static_cast<int64_t>(std::min(bytes / kBytesPerNs, kExpectNsMax));
  expects_until_ns_ = std::max(expects_until_ns_, now_ns() + time_ns);
}

void EngineImpl::WaitForReads(LinkImpl& link) {
  for (LinkImpl* waiting : waiting_for_reads_) {
    if (waiting == &link) return;
  }
  waiting_for_reads_.push_back(&link);
}

namespace {

struct SetupResult : reactor::Work {
  SetupResult()
      : reactor::Work([](reactor::Work* work) { static_cast<SetupResult*>(work)->Tell(); }) {}
  void Tell() {
    const std::unique_ptr<SetupResult> self(this);
    --link->setup_jobs;  // it has stayed for us
    then();
  }
  LinkImpl* link = nullptr;
  absl::AnyInvocable<void()> then;
};

}  // namespace

void EngineImpl::OnSetupThread(LinkImpl& link, absl::AnyInvocable<void()> job,
                               absl::AnyInvocable<void()> then) {
  auto result = std::make_unique<SetupResult>();
  result->link = &link;
  result->then = std::move(then);
  ++link.setup_jobs;
  reactor::PostSetup([gate = gate_, job = std::move(job), result = std::move(result)]() mutable {
    job();
    reactor::Work* const work = result.release();
    VERBENA_CHECK(gate->RunInSeat(*work), "an engine died before its links' setup jobs");
  });
}

}  // namespace verbena::session
