#include "rpc/session/engine_impl.h"

#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {
namespace {

// How long a reactor polls for a device's work before it sleeps and looks once in kAwaitLookNs: as
// long as most kernels take. Longer, and a long one costs a CPU; shorter, and one that ends just
// then is announced a millisecond late.
constexpr int64_t kAwaitSpinNs = 2'000'000;
constexpr int64_t kAwaitLookNs = 1'000'000;
// How often devices that keep somebody waiting are asked whether they failed: that costs calls of
// the driver.
constexpr int64_t kAwaitAskNs = 10'000'000;

}  // namespace

std::unique_ptr<Engine> Engine::Create(reactor::Reactor& reactor,
                                       std::vector<std::unique_ptr<fabric::Fabric>> fabrics,
                                       const EngineOptions& options) {
  return std::make_unique<EngineImpl>(reactor, std::move(fabrics), options);
}

EngineImpl::EngineImpl(reactor::Reactor& reactor,
                       std::vector<std::unique_ptr<fabric::Fabric>> fabrics,
                       const EngineOptions& options)
    : reactor_(reactor),
      fabrics_(std::move(fabrics)),
      options_(options),
      gate_(std::make_shared<EngineGate>(this)),
      leases_(limits::kLeasesMax),
      reads_(2 * limits::kReadsInFlightMax + kReadsStandingMax) {
  MakeFd();
  reactor_.AddPoller(*this);
}

EngineImpl::~EngineImpl() {
  gate_->Close();
  reactor_.RemovePoller(*this);  // waits for whoever is in the seat
  for (LinkImpl* link : links_) VERBENA_CHECK(link == nullptr, "an engine dies before its links");
  RunInbox();
  if (wake_work_->state.exchange(WakeWork::kOrphan) == WakeWork::kIdle) delete wake_work_;
  if (epoll_fd_ >= 0) close(epoll_fd_);
}

void EngineImpl::MakeFd() {
  for (const auto& fabric : fabrics_) {
    if (fabric->traits().gathers_sends) gathering_.push_back(fabric.get());
  }
  if (fabrics_.size() == 1) {
    fd_ = fabrics_[0]->fd();
    return;
  }
  epoll_fd_ = epoll_create1(EPOLL_CLOEXEC);
  VERBENA_CHECK(epoll_fd_ >= 0, "epoll_create1: ", errno);
  for (const auto& fabric : fabrics_) {
    if (fabric->fd() < 0) continue;
    epoll_event event{};
    event.events = EPOLLIN;
    VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, fabric->fd(), &event) == 0,
                  "epoll_ctl: ", errno);
  }
  fd_ = epoll_fd_;
}

fabric::Fabric* EngineImpl::FindFabric(absl::string_view name) {
  for (const auto& fabric : fabrics_) {
    if (fabric->traits().name == name) return fabric.get();
  }
  return nullptr;
}

absl::StatusOr<LinkId> EngineImpl::ReserveLink() {
  absl::MutexLock lock(&ids_mutex_);
  if (!free_ids_.empty()) {
    const uint32_t id = free_ids_.back();
    free_ids_.pop_back();
    return static_cast<LinkId>(id);
  }
  if (ids_used_ == limits::kLinksPerReactorMax) {
    return absl::ResourceExhaustedError(
        absl::StrCat(ids_used_, " links on one reactor; the limit is ", limits::kLinksPerReactorMax,
                     " (kLinksPerReactorMax)"));
  }
  return static_cast<LinkId>(ids_used_++);
}

void EngineImpl::ReturnLink(LinkId id) {
  absl::MutexLock lock(&ids_mutex_);
  free_ids_.push_back(static_cast<uint32_t>(id));
}

void EngineImpl::Adopt(const LinkSetup& setup, LinkOwner* owner, RequestSink* sink,
                       absl::AnyInvocable<void(absl::StatusOr<Link*>) &&> proved) {
  const uint32_t index = static_cast<uint32_t>(setup.id);
  if (index >= links_.size()) links_.resize(index + 1);
  VERBENA_CHECK(links_[index] == nullptr, "link ", index, " is in use");
  links_[index] = new LinkImpl(*this, next_serial_++, setup, owner, sink, std::move(proved));
  links_[index]->Begin();
}

std::vector<Link*> EngineImpl::Links() {
  std::vector<Link*> up;
  for (LinkImpl* link : links_) {
    if (link != nullptr && link->up() && link->was_proved()) up.push_back(link);
  }
  return up;
}

Engine::Counters EngineImpl::counters() const {
  Counters counters = counters_;
  for (LinkImpl* link : links_) {
    if (link == nullptr) continue;
    counters.frames_sent += link->writer().frames_sent();
    counters.calls_live += link->client().live() + link->server().live();
  }
  return counters;
}

LinkImpl* EngineImpl::FindLink(LinkId id, uint64_t serial) {
  LinkImpl* const link = Find(id);
  return link != nullptr && link->serial() == serial ? link : nullptr;
}

// ---- the poll

bool EngineImpl::Poll(int64_t now_ns) {
  bool any = false;
  for (const auto& fabric : fabrics_) any |= fabric->Poll(*this);
  if (!awaiting_.empty()) [[unlikely]]
    any |= PollAwaiting(now_ns);
  if (!inbox_.Empty()) any |= RunInbox();
  if (later_) any |= RunLater();
  return any;
}

void EngineImpl::AwaitReady(ReadyWaiter& waiter) {
  if (awaiting_.empty()) awaiting_since_ns_ = asked_ns_ = now_ns();
  awaiting_.push_back(&waiter);
}

bool EngineImpl::PollAwaiting(int64_t now_ns) {
  const bool ask = now_ns - asked_ns_ >= kAwaitAskNs;
  if (ask) asked_ns_ = now_ns;
  const size_t before = awaiting_.size();
  for (ReadyWaiter*& waiter : awaiting_) {
    if (waiter != nullptr && waiter->PollReady(ask)) waiter = nullptr;
  }
  std::erase(awaiting_, nullptr);
  const bool any = awaiting_.size() != before;
  if (any) awaiting_since_ns_ = now_ns;
  if (awaiting_.empty()) reactor_.Cancel(awaiting_timer_);
  return any;
}

bool EngineImpl::RunLater() {
  later_ = false;
  bool any = false;
  if (!closing_.empty() || !lane_failed_.empty() || !draining_.empty()) any |= RunClosing();
  if (!notify_.empty()) {
    any = true;
    notifying_.swap(notify_);
    for (LeaseGroup*& group : notifying_) {
      if (group == nullptr) continue;  // forgotten
      LeaseGroup& now = *group;
      group = nullptr;
      now.notify_queued = false;
      now.Notify();
    }
    notifying_.clear();
  }
  if (!done_.empty()) {
    any = true;
    finishing_.swap(done_);
    for (auto& [fetch, status] : finishing_) fetch->OnDone(status);
    finishing_.clear();
  }
  if (!failed_.empty()) {
    any = true;
    failing_.swap(failed_);
    for (auto& [call, status] : failing_) {
      ReplyView view;
      view.status = &status;
      call->OnReply(view);
    }
    failing_.clear();
  }
  if (!ended_replies_.empty()) {
    any = true;
    ending_replies_.swap(ended_replies_);
    for (ServerCall* call : ending_replies_) call->OnReplyLeasesEnded();
    ending_replies_.clear();
  }
  if (!dying_.empty()) any |= FinishDying();
  later_ |= !draining_.empty() || !dying_.empty();
  return any;
}

bool EngineImpl::RunInbox() {
  bool any = false;
  while (reactor::Work* work = inbox_.Pop()) {
    any = true;
    work->run(work);
  }
  return any;
}

bool EngineImpl::RunClosing() {
  bool any = false;
  for (size_t i = 0; i < closing_.size(); ++i, any = true) closing_[i]->RunClose();
  closing_.clear();
  for (size_t i = 0; i < lane_failed_.size(); ++i, any = true) {
    lane_failed_[i]->groups.ForEach([](LeaseGroup& group) { group.OnLaneFailed(); });
  }
  lane_failed_.clear();
  const size_t draining = draining_.size();
  draining_.erase(std::remove_if(draining_.begin(), draining_.end(),
                                 [](LinkImpl* link) { return link->CheckDrained(); }),
                  draining_.end());
  return any || draining_.size() != draining;
}

// Links that the fabric has let go of, once nothing is left to be told about them.
bool EngineImpl::FinishDying() {
  if (!failed_.empty() || !done_.empty() || !ended_replies_.empty() || !notify_.empty() ||
      !closing_.empty()) {
    return true;
  }
  bool any = false;
  for (size_t i = 0; i < dying_.size();) {
    LinkImpl& link = *dying_[i];
    if (!link.finished()) {
      ++i;
      continue;
    }
    any = true;
    dying_.erase(dying_.begin() + static_cast<std::ptrdiff_t>(i));
    Remove(link);
  }
  return any;
}

void EngineImpl::Remove(LinkImpl& link) {
  const LinkId id = link.id();
  for (std::vector<LinkImpl*>* list : {&draining_, &waiting_for_reads_, &lane_failed_}) {
    list->erase(std::remove(list->begin(), list->end(), &link), list->end());
  }
  links_[static_cast<uint32_t>(id)] = nullptr;
  link.Finish();
  counters_.frames_sent += link.writer().frames_sent();
  delete &link;
  ReturnLink(id);
}

void EngineImpl::Flush() {
  while (FrameWriter* writer = dirty_.front()) {
    writer->Unlink();
    writer->Flush();
  }
  for (fabric::Fabric* const fabric : gathering_) fabric->EndTick();
}

// Whether a poll has something to do that no fabric will report.
bool EngineImpl::HasLater() const {
  for (const auto& fabric : fabrics_) {
    if (fabric->HasLater()) return true;
  }
  if (!awaiting_.empty() && now_ns() - awaiting_since_ns_ < kAwaitSpinNs) return true;
  return QueuedLater();
}

bool EngineImpl::QueuedLater() const {
  if (!inbox_.Empty() || !dirty_.empty()) return true;
  if (!later_) return false;
  if (!failed_.empty() || !done_.empty() || !ended_replies_.empty() || !notify_.empty() ||
      !closing_.empty() || !lane_failed_.empty()) {
    return true;
  }
  for (LinkImpl* link : dying_) {
    if (link->finished()) return true;
  }
  return false;
}

int64_t EngineImpl::expects_until_ns() const {
  if (awaiting_.empty()) return expects_until_ns_;
  return std::max(expects_until_ns_, awaiting_since_ns_ + kAwaitSpinNs);
}

bool EngineImpl::Arm() {
  // However soon it sleeps: no device wakes it.
  if (!awaiting_.empty()) reactor_.Arm(awaiting_timer_, now_ns() + kAwaitLookNs);
  bool again = false;
  for (const auto& fabric : fabrics_) again |= fabric->Arm();
  return again || QueuedLater();
}

void EngineImpl::Disarm() {
  for (const auto& fabric : fabrics_) fabric->Disarm();
}

bool EngineImpl::PeerOnThisCpu() const {
  for (const auto& fabric : fabrics_) {
    if (fabric->PeerOnThisCpu()) return true;
  }
  return false;
}

bool EngineImpl::Awaits() const {
  // A blocking caller asks after each call, and gains nothing where there is much to look at.
  constexpr size_t kLinksMax = 8;
  if (links_.size() > kLinksMax || counters_.leases_live != 0 || counters_.fetches_live != 0) {
    return true;
  }
  for (const LinkImpl* link : links_) {
    if (link != nullptr && link->awaits()) return true;
  }
  return false;
}

// ---- from other threads

void EngineImpl::RunInSeat(reactor::Work& work) {
  inbox_.Push(work);
  if (!reactor_.options().thread) return;  // driven by hand: its next poll looks
  if (wake_work_->state.exchange(WakeWork::kPosted) == WakeWork::kIdle) {
    reactor_.PostSeat(*wake_work_);
  }
}

}  // namespace verbena::session
