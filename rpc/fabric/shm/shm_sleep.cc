// Which links are polled, and sleeping.
#include <sched.h>
#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/fabric/shm/bell.h"
#include "rpc/fabric/shm/shm_fabric.h"

namespace verbena::fabric::shm {
namespace {

// A link without traffic for one to two of these turns cold. Lower, and pauses between calls cost a
// bell; higher, and the links of a burst are polled for longer after it.
constexpr int64_t kCoolNs = 4'000'000;
// How late a peer's death is noticed while the reactor never sleeps.
constexpr int64_t kHangupNs = 10'000'000;
// Armed for less, and nobody has slept: a blocking caller arms at the end of each call. A bell that
// rang meanwhile stays readable, and costs the next sleep one wake-up.
constexpr int64_t kSleptNs = 20'000;
// Copies that stand in streams: for so long after the last was ordered this side does not sleep for
// them, and from then on it looks once in a while. Lower, and what waits for their end (its lease,
// a reply) waits for a millisecond more often.
constexpr int64_t kOrderedSpinNs = 2'000'000;
constexpr int64_t kOrderedLookNs = 1'000'000;
// Nobody waits for memory in quarantine.
constexpr int64_t kQuarantineLookNs = 50'000'000;
// What a timer can be set to.
constexpr int64_t kTimerNsMax = 999'999'999;

}  // namespace

void ShmFabric::Heat(Link& link) {
  if (link.hot) return;
  link.hot = true;
  std::erase(cold_, &link);
  hot_.push_back(&link);
  link.mine.control().cpu.store(cpu_, std::memory_order_relaxed);
  link.mine.control().sleeping.store(armed_ ? 1 : 0, std::memory_order_relaxed);
}

void ShmFabric::Housekeep() {
  const int64_t now = SteadyNs();
  if (!kept_.empty()) LookAtKept();
  armed_ns_ = now;
  if (now - housekept_ns_ >= kCoolNs) {
    housekept_ns_ = now;
    NoteCpu();
    CoolIdle();
  }
  if (now - hangups_checked_ns_ >= kHangupNs) {
    hangups_checked_ns_ = now;
    CheckHangups();
    if (!quarantine_.empty()) {
      quarantine_.Look([this](std::unique_ptr<Link> link) { Forget(std::move(link)); });
    }
  }
}

void ShmFabric::CoolIdle() {
  size_t kept = 0;
  for (Link* link : hot_) {
    bool keep = link->active || link->closing;
    link->active = false;
    if (!keep) {
      std::atomic<uint32_t>& sleeping = link->mine.control().sleeping;
      sleeping.store(1, std::memory_order_relaxed);
      std::atomic_thread_fence(std::memory_order_seq_cst);
      keep = HasNews(*link);
      if (keep) sleeping.store(0, std::memory_order_relaxed);
    }
    if (keep) {
      hot_[kept++] = link;
    } else {
      link->hot = false;
      cold_.push_back(link);
    }
  }
  hot_.resize(kept);
}

void ShmFabric::NoteCpu() {
  const auto cpu = static_cast<uint32_t>(sched_getcpu());
  if (cpu == cpu_) return;
  cpu_ = cpu;
  for (Link* link : hot_) link->mine.control().cpu.store(cpu, std::memory_order_relaxed);
}

bool ShmFabric::PeerOnThisCpu() const {
  const auto cpu = static_cast<uint32_t>(sched_getcpu());
  return std::any_of(hot_.begin(), hot_.end(), [cpu](const Link* link) {
    return link->theirs.control().cpu.load(std::memory_order_relaxed) == cpu;
  });
}

bool ShmFabric::HasLater() const {
  // A ring was taken, and what rang has not been looked at.
  const bool cold_news = scan_cold_ && !cold_.empty();
  return cold_news || !events_.empty() || !ending_.empty() || inbox_->any() || transfers_.busy() ||
         stages_.busy() || OrderedSoon() ||
         std::any_of(closing_.begin(), closing_.end(),
                     [this](const Link* l) { return MayEnd(*l); });
}

bool ShmFabric::OrderedSoon() const {
  return transfers_.ordered() > 0 && SteadyNs() - ordered_ns_ < kOrderedSpinNs;
}

void ShmFabric::SetTimer(int64_t after_ns) {
  if (timer_fd_ < 0) {
    timer_fd_ = timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC);
    VERBENA_CHECK(timer_fd_ >= 0, "timerfd_create: errno ", errno);
    epoll_event event{};
    event.events = EPOLLIN | EPOLLET;
    event.data.u64 = ~uint64_t{0};
    VERBENA_CHECK(epoll_ctl(epoll_fd_, EPOLL_CTL_ADD, timer_fd_, &event) == 0);
  }
  itimerspec once{};
  once.it_value.tv_nsec = after_ns;
  timerfd_settime(timer_fd_, 0, &once, nullptr);
}

bool ShmFabric::EndedMeanwhile() const {
  const auto still_read = [this](const Ending& ending) { return StillRead(ending); };
  return !std::all_of(endings_.begin(), endings_.end(), [this](const Ending& ending) {
    return !MayAnswer(ending, armed_ns_);
  }) || !std::all_of(kept_.begin(), kept_.end(), still_read);
}

void ShmFabric::SetTimerIfAny() {
  if (transfers_.ordered() > 0 || !closing_.empty()) {
    SetTimer(kOrderedLookNs);
  } else if (!endings_.empty()) {
    int64_t first_ns = endings_.front().since_ns;
    for (const Ending& ending : endings_) first_ns = std::min(first_ns, ending.since_ns);
    const int64_t due_ns = first_ns + options_.revoke_held_ns;
    SetTimer(std::clamp(due_ns - armed_ns_, kOrderedLookNs, kTimerNsMax));
  } else if (!quarantine_.empty()) {
    SetTimer(kQuarantineLookNs);
  }
}

bool ShmFabric::Arm() {
  Housekeep();
  if (HasLater()) return true;
  armed_ = true;
  for (Link* link : hot_) link->mine.control().sleeping.store(1, std::memory_order_relaxed);
  // Pairs with WakePeer.
  std::atomic_thread_fence(std::memory_order_seq_cst);
  const bool news =
      transfers_.busy() ||  // an answer may have come that saw this side awake
      std::any_of(hot_.begin(), hot_.end(),
                  [](const Link* link) { return !link->closing && HasNews(*link); }) ||
      EndedMeanwhile();
  if (!news) {
    SetTimerIfAny();
    return false;
  }
  // Awake at once, without the system calls of Disarm; a bell that rang meanwhile costs one sleep.
  armed_ = false;
  for (Link* link : hot_) link->mine.control().sleeping.store(0, std::memory_order_relaxed);
  return true;
}

void ShmFabric::Disarm() {
  if (!armed_) return;
  armed_ = false;
  for (Link* link : hot_) link->mine.control().sleeping.store(0, std::memory_order_relaxed);
  if (SteadyNs() - armed_ns_ < kSleptNs) return;
  NoteCpu();
  if (TakeRings(inbox_->bell())) {
    scan_cold_ = true;
  } else {
    CheckHangups();  // perhaps that is what woke it
  }
}

void ShmFabric::CheckHangups() {
  epoll_event events[64];
  const int n = epoll_wait(epoll_fd_, events, 64, 0);
  for (int i = 0; i < n; ++i) {
    if (events[i].data.u64 == ~uint64_t{0}) continue;  // a bell
    Link* link = Find(static_cast<LinkId>(static_cast<uint32_t>(events[i].data.u64)));
    if (link == nullptr || link->hung_up) continue;
    if ((events[i].events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) == 0) {
      link->side_news = true;
      if (!link->importing && !link->closing) PostTake(*link);
      continue;
    }
    link->hung_up = true;
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, link->channel->fd(), nullptr);
    Heat(*link);
  }
}

}  // namespace verbena::fabric::shm
