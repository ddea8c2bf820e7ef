// How links, lanes and queue pairs end.
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

// A queue pair in the error state flushes in microseconds. One that has not by now never will; its
// destruction ends what it had under way as well.
constexpr int64_t kDrainNs = 2'000'000'000;

}  // namespace

void VerbsFabric::AddEnd(Link& link, std::unique_ptr<End> end) {
  ++link.ends;
  ends_.Add(std::move(end));
}

// An end goes down: nothing is posted to it any more, what was posted is waited for, then it is
// destroyed.
void VerbsFabric::FailEnd(End& end) {
  VERBENA_DCHECK(end.up());
  end.state = EndState::kFailing;
  Link& link = *Find(end.link);
  if (end.kind == EndKind::kReader) {
    DropWaiting(static_cast<ReaderEnd&>(end), link.closing ? Error::kLinkDown : Error::kLaneDown);
  } else if (end.kind == EndKind::kOwner) {
    VoidLeases(static_cast<OwnerEnd&>(end));
  }
  if (end.kind != EndKind::kControl && !link.closing) ++link.counters.lanes_broken;
  PostJob([this, number = end.number, pair = end.owned.pair.get()]() -> Inbox::News {
    const bool in_error = pair->Fail().ok();
    return [this, number, in_error] { OnFailed(number, in_error); };
  });
  if (end.kind == EndKind::kControl && !link.closing) {
    BeginDown(link, absl::UnavailableError("verbs: the control lane failed"), false);
  }
}

// In the error state everything that is posted is flushed, in order: the marker comes last. A
// device that is gone completes nothing more.
void VerbsFabric::OnFailed(uint32_t number, bool in_error) {
  End& end = *ends_.Find(number);
  end.state = EndState::kDraining;
  if (!in_error || broken_ || options_.port.device->dead()) return OnDrained(end);
  ibv_send_wr work = {};
  work.wr_id = WorkId{WorkKind::kMarker, number, end.posted}.word();
  work.opcode = IBV_WR_SEND;
  work.send_flags = IBV_SEND_SIGNALED;
  ibv_send_wr* refused = nullptr;
  const int result = ibv_post_send(end.qp(), &work, &refused);
  end.drain_deadline_ns = SteadyNs() + kDrainNs;
  if (result == 0) {
    if (end.kind != EndKind::kControl) ++bulk_due_;
    return draining_.push_back(number);
  }
  VERBENA_LOG(kWarning, "verbs: a queue pair in the error state takes no marker: errno ", result);
  OnDrained(end);
}

void VerbsFabric::OnDrained(End& end) {
  VERBENA_DCHECK(end.state == EndState::kDraining);
  if (end.kind == EndKind::kReader) {
    // What it has READ is still copied to where it was wanted: OnCopiedOut comes back here.
    static_cast<ReaderEnd&>(end).flushed = true;
    if (static_cast<ReaderEnd&>(end).copying > 0) return;
  }
  end.state = EndState::kDestroying;
  Link& link = *Find(end.link);
  std::vector<ibv_mw*> windows;
  std::vector<ibv_mr*> own;
  if (end.kind == EndKind::kControl) {
    // Buffers of sends whose completions a failed device never gave.
    auto& control = static_cast<ControlEnd&>(end);
    if (control.outstanding() > 0) {
      OnSendDone(control, {WorkKind::kSend, control.number, control.posted - 1});
    }
    for (const ControlEnd::Queued& queued : control.chain) {
      if (queued.buffer != ControlEnd::kNoBuffer) sends_->Give(queued.buffer);
    }
    control.chain.clear();
    by_qp_number_.erase(control.owned.pair->number());
    receiver_ = nullptr;
  } else if (end.kind == EndKind::kReader) {
    // READs whose completions a failed device never gave may still write until it is destroyed.
    auto& reader = static_cast<ReaderEnd&>(end);
    reader.told_down = end.outstanding() == 0;
    if (reader.told_down && !link.closing) events_.LaneDown(end.link, reader.lane);
  } else {
    auto& owner = static_cast<OwnerEnd&>(end);
    windows = std::move(owner.windows);
    own = std::move(owner.own);
    if (!link.closing) events_.LaneDown(end.link, owner.lane);
  }
  PostJob([this, number = end.number, owned = std::move(end.owned), windows = std::move(windows),
           own = std::move(own)]() mutable -> Inbox::News {
    // Windows first: a queue pair with a bound one takes most of a minute to destroy on some
    // devices.
    for (ibv_mw* const window : windows) {
      const absl::Status status = ErrnoReturned("ibv_dealloc_mw", ibv_dealloc_mw(window));
      if (!status.ok()) VERBENA_LOG(kWarning, "verbs: ", status.message());
    }
    for (ibv_mr* const mr : own) Domain::Deregister(mr);
    owned.pair.reset();
    return [this, number, count = windows.size(), receives = std::move(owned.receives)] {
      OnDestroyed(number, count, receives);
    };
  });
}

// READs that never completed, of a queue pair that is gone.
void VerbsFabric::AbortReads(ReaderEnd& end) {
  while (end.outstanding() > 0) {
    ibv_wc flushed = {};
    flushed.status = IBV_WC_WR_FLUSH_ERR;
    flushed.wr_id = WorkId{WorkKind::kRead, end.number, end.completed}.word();
    OnReadDone(end, flushed);
  }
}

void VerbsFabric::OnDestroyed(uint32_t number, size_t windows,
                              const std::vector<uint32_t>& receives) {
  windows_made_ -= windows;
  const std::unique_ptr<End> end = ends_.Remove(number);
  if (srq_ == nullptr && !receives.empty()) receives_->Return(receives);
  Link& link = *Find(end->link);
  if (end->kind == EndKind::kControl) {
    link.control = nullptr;
  } else if (end->kind == EndKind::kReader) {
    auto& reader = static_cast<ReaderEnd&>(*end);
    ReaderEnd*& newest = link.readers[reader.lane.index];
    if (newest == &reader) newest = nullptr;
    AbortReads(reader);
    if (!reader.told_down && !link.closing) events_.LaneDown(reader.link, reader.lane);
  } else {
    auto& owner = static_cast<OwnerEnd&>(*end);
    OwnerEnd*& newest = link.owners[owner.lane.index];
    if (newest == &owner) newest = nullptr;
    AnswerLeases(owner);
  }
  --link.ends;
  AdvanceDown(link);
}

void VerbsFabric::Close(LinkId id) {
  Link* const link = Find(id);
  if (link == nullptr || link->closing) return;
  BeginDown(*link, absl::CancelledError("closed here"), true);
}

// `say_bye`: the peer is told, behind the frames that it has not taken yet; the end of a queue pair
// tells it nothing.
void VerbsFabric::BeginDown(Link& link, const absl::Status& cause, bool say_bye) {
  if (link.closing) return;
  ControlEnd& control = *link.control;
  // One that fails here comes back to this function, which then has nothing left to do.
  if (say_bye && control.up()) PostChain(link);
  if (link.closing) return;
  link.closing = true;
  link.cause = cause;
  TakeNews();  // lanes that were completed just now go down with the others
  ends_.ForEach([&](End& end) {
    if (end.link == link.id && end.kind != EndKind::kControl && end.up()) FailEnd(end);
  });
  if (!control.up()) return;
  if (say_bye) {
    SayBye(link);
  } else {
    FailEnd(control);
  }
}

// A link whose ends and jobs are gone is gone.
void VerbsFabric::AdvanceDown(Link& link) {
  if (!link.closing || link.down_queued || link.ends > 0 || link.jobs > 0) return;
  link.down_queued = true;
  events_.LinkDown(link.id);
}

// The last words that nobody acknowledges are not waited for.
void VerbsFabric::CheckByes() {
  if (byes_.empty()) return;
  const int64_t now_ns = SteadyNs();
  std::erase_if(byes_, [&](LinkId id) {
    Link* const link = Find(id);
    if (link == nullptr || link->control == nullptr || !link->control->up()) return true;
    const bool done = link->control->outstanding() == 0 && !link->bye_waits;
    if (!done && now_ns < link->bye_deadline_ns) return false;
    FailEnd(*link->control);
    return true;
  });
}

void VerbsFabric::CheckDraining() {
  if (draining_.empty()) return;
  const int64_t now_ns = SteadyNs();
  std::erase_if(draining_, [&](uint32_t number) {
    End* const end = ends_.Find(number);
    if (end == nullptr || end->state != EndState::kDraining) return true;
    if (end->kind == EndKind::kReader && static_cast<ReaderEnd*>(end)->flushed) return true;
    if (now_ns < end->drain_deadline_ns) return false;
    VERBENA_LOG(kError, "verbs: queue pair ", end->owned.pair->number(), " of ",
                options_.port.device->name(), " does not flush what it had posted");
    OnDrained(*end);
    return true;
  });
}

absl::Status VerbsFabric::Remove(LinkId id) {
  Link& link = *Find(id);
  absl::Status cause = std::move(link.cause);
  counters_.links.Add(link.counters);
  if (link.chained) std::erase(chained_, &link);
  links_[static_cast<size_t>(id)] = nullptr;
  ForgetSetup(id);
  return cause;
}

void VerbsFabric::OnDeviceEvent(DeviceEvent event, uint8_t port, uint32_t qp_number) {
  switch (event) {
    case DeviceEvent::kPortDown:
    case DeviceEvent::kPortUp:
    case DeviceEvent::kGidChange:
    case DeviceEvent::kLidOrPkeyChange:
      if (port != 0 && port != options_.port.port) return;
      port_changed_ = true;
      return;
    case DeviceEvent::kQpFatal:
      return inbox_->Push([this, qp_number] { OnQueuePairEvent(qp_number); });
    case DeviceEvent::kDeviceFatal:
    case DeviceEvent::kCqError:
    case DeviceEvent::kSrqError:
      return inbox_->Push([this, event] { OnDeviceFatal(event); });
    case DeviceEvent::kQpLastWqe:  // the marker is what is waited for
    case DeviceEvent::kSrqLimit:
      return;
  }
}

void VerbsFabric::OnQueuePairEvent(uint32_t qp_number) {
  End* failed = nullptr;
  ends_.ForEach([&](End& end) {
    if (end.up() && end.owned.pair->number() == qp_number) failed = &end;
  });
  if (failed == nullptr) return;
  VERBENA_LOG(kWarning, "verbs: queue pair ", qp_number, " has failed");
  FailEnd(*failed);
}

// Every link goes; without a working device or queue nothing can be said to the peers.
void VerbsFabric::OnDeviceFatal(DeviceEvent event) {
  const absl::Status cause = absl::UnavailableError(
      absl::StrCat("verbs: ", options_.port.device->name(), ": ", Name(event)));
  VERBENA_LOG(kError, cause.message());
  broken_ = true;
  for (const std::unique_ptr<Link>& link : links_) {
    if (link != nullptr) BeginDown(*link, cause, false);
  }
  ends_.ForEach([this](End& end) {
    if (end.state == EndState::kDraining) OnDrained(end);
  });
}

}  // namespace verbena::fabric::verbs
