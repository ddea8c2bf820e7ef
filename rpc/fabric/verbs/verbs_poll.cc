// Polling, and sleeping.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/log.h"
#include "rpc/fabric/verbs/calls.h"
#include "rpc/fabric/verbs/verbs_fabric.h"

namespace verbena::fabric::verbs {
namespace {

// Completions of one queue that a poll takes at most: the rest of the reactor has its turn too.
constexpr int kBatches = 4;

}  // namespace

bool VerbsFabric::TakeNews() {
  if (!inbox_->any()) return false;
  for (Inbox::News& news : inbox_->Take()) std::move(news)();
  return true;
}

bool VerbsFabric::Poll(EventSink& sink) {
  ++polls_;
  bool any = TakeNews();
  EndTick();  // what a tick left; what this one brings leaves at its own end
  if (!started_.empty()) DeliverEarly(sink);
  if (stashed_ > 0) {
    any = true;
    const int stashed = std::exchange(stashed_, 0);
    for (int i = 0; i < stashed; ++i) OnCompletion(stash_[static_cast<size_t>(i)], sink);
  }
  if (PollQueue(control_cq_, sink)) {
    any = true;
  } else {
    receives_->Repost();  // not between a frame and its answer
  }
  if (bulk_due_ > 0 && PollQueue(bulk_cq_, sink)) {
    any = true;
    read_pace_.Measure(SteadyNs());
  }
  if (copies_.busy() || !uncopied_.empty() || !lease_copies_.empty()) any |= PollCopies();
  if (!owners_.empty()) PostOwned();
  if (!byes_.empty()) CheckByes();
  if (!draining_.empty()) CheckDraining();
  if (!want_buffer_.empty()) {
    OfferBuffers();
    if (sends_->empty()) EndDeaf();
  }
  if (!events_.empty()) {
    any = true;
    Deliver(sink);
  }
  return any;
}

int VerbsFabric::TakeCompletions(ibv_cq* cq, absl::Span<ibv_wc> into) {
  const int count = ibv_poll_cq(cq, static_cast<int>(into.size()), into.data());
  if (cq == bulk_cq_ && count > 0) bulk_due_ -= std::min(bulk_due_, static_cast<uint64_t>(count));
  return count;
}

bool VerbsFabric::PollQueue(ibv_cq* cq, EventSink& sink) {
  std::array<ibv_wc, 32> batch;
  for (int i = 0; i < kBatches; ++i) {
    const int count = TakeCompletions(cq, absl::MakeSpan(batch));
    if (count <= 0) return i > 0;
    for (int k = 0; k < count; ++k) OnCompletion(batch[static_cast<size_t>(k)], sink);
    if (count < static_cast<int>(batch.size())) return true;
  }
  return true;
}

// Only wr_id, status and the queue pair's number are there in a failed one.
void VerbsFabric::OnCompletion(const ibv_wc& completion, EventSink& sink) {
  const WorkId id = WorkId::FromWord(completion.wr_id);
  if (id.kind == WorkKind::kReceive) return OnReceived(completion, sink);
  End* const end = ends_.Find(id.end);
  if (end == nullptr) {
    ++counters_.stale_completions;
    return;
  }
  switch (id.kind) {
    case WorkKind::kSend:
    case WorkKind::kBye: {
      OnSendDone(static_cast<ControlEnd&>(*end), id);
      if (completion.status == IBV_WC_SUCCESS || !end->up()) return;
      Link& link = *Find(end->link);
      if (link.closing) return FailEnd(*end);
      return BeginDown(link,
                       absl::UnavailableError(absl::StrCat("verbs: a SEND failed: ",
                                                           ibv_wc_status_str(completion.status))),
                       false);
    }
    case WorkKind::kRead:
      return OnReadDone(static_cast<ReaderEnd&>(*end), completion);
    case WorkKind::kOwn:
      return OnOwnDone(static_cast<OwnerEnd&>(*end), id, completion.status);
    case WorkKind::kMarker:
      if (end->state == EndState::kDraining) OnDrained(*end);
      return;
    case WorkKind::kReceive:
      break;
  }
}

void VerbsFabric::Deliver(EventSink& sink) {
  events_.Deliver(
      sink,
      [this](LinkId id) {
        const Link* const link = Find(id);
        return link != nullptr && !link->closing;
      },
      [this](LinkId id) { return Remove(id); });
}

bool VerbsFabric::HasLater() const {
  return !events_.empty() || inbox_->any() || !chained_.empty() || !started_.empty() ||
         !byes_.empty() || !draining_.empty() || !owners_.empty() || stashed_ > 0 ||
         (!want_buffer_.empty() && (sendable_ || sends_->empty())) || receives_->MustRepost() ||
         copies_.busy() || !uncopied_.empty() || !lease_copies_.empty() ||
         (!readers_.empty() && !read_pace_.full());
}

// Asked for first, looked at again after it: what completed before the question rings for nothing.
bool VerbsFabric::Arm() {
  receives_->Repost();
  if (HasLater()) return true;
  if (broken_ || options_.port.device->dead()) return false;  // its end is in the inbox
  DrainChannel();
  for (ibv_cq* const cq : {control_cq_, bulk_cq_}) {
    const int result = ibv_req_notify_cq(cq, 0);
    if (result == 0) continue;
    VERBENA_LOG(kError, ErrnoReturned("ibv_req_notify_cq", result).message());
    OnDeviceFatal(DeviceEvent::kCqError);
    return true;
  }
  for (ibv_cq* const cq : {control_cq_, bulk_cq_}) {
    const int count =
        TakeCompletions(cq, absl::MakeSpan(stash_).subspan(static_cast<size_t>(stashed_)));
    if (count > 0) stashed_ += count;
    if (stashed_ > 0) return true;
  }
  return inbox_->any();
}

void VerbsFabric::Disarm() {}

void VerbsFabric::DrainChannel() {
  if (channel_ == nullptr) return;
  ibv_cq* cq = nullptr;
  void* context = nullptr;
  while (ibv_get_cq_event(channel_, &cq, &context) == 0) ibv_ack_cq_events(cq, 1);
}

LinkCounters VerbsFabric::CountersOf(LinkId id) const {
  const Link* const link = Find(id);
  return link == nullptr ? LinkCounters() : link->counters;
}

FabricCounters VerbsFabric::counters() const {
  FabricCounters all = counters_;
  for (const std::unique_ptr<Link>& link : links_) {
    if (link != nullptr) all.links.Add(link->counters);
  }
  all.links_refused = links_refused_.load(std::memory_order_relaxed);
  all.receive_bytes = receives_->bytes();
  all.queue_pairs = ends_.size();
  all.windows = windows_made_;
  all.windows_used = windows_made_ - windows_.size();
  return all;
}

std::vector<ibv_qp*> VerbsFabric::QueuePairsOf(LinkId id) {
  std::vector<ibv_qp*> pairs;
  ends_.ForEach([&](End& end) {
    if (end.link == id && end.owned.pair != nullptr) pairs.push_back(end.qp());
  });
  return pairs;
}

}  // namespace verbena::fabric::verbs
