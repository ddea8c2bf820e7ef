#include "rpc/reactor/reactor.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/base/fork.h"
#include "rpc/reactor/impl.h"
#include "rpc/reactor/start_thread.h"
#include "rpc/reactor/thread_tags.h"

namespace verbena::reactor {

constinit thread_local Reactor* tls_current = nullptr;

absl::StatusOr<std::unique_ptr<Reactor>> Reactor::Create(const ReactorOptions& options) {
  if (Forked()) {
    return ForkedError();
  }
  VERBENA_CHECK(!options.clock || !options.thread,
                "a clock of its own is for reactors without a thread");
  WatchForFork();
  SteadyNs();  // calibrates
  auto reactor = std::unique_ptr<Reactor>(new Reactor(options));
  if (!options.thread) return reactor;
  if (absl::Status status = reactor->impl_->Open(); !status.ok()) return status;
  Impl* const impl = reactor->impl_.get();
  impl->thread = StartThread(options.name, [impl] { impl->ThreadMain(); });
  return reactor;
}

Reactor::Reactor(const ReactorOptions& options) : options_(options) {
  static std::atomic<uint32_t> next_index{0};
  index_ = next_index.fetch_add(1, std::memory_order_relaxed);
  impl_ = std::make_unique<Impl>(*this);
  now_ns_ = impl_->Clock();
}

Reactor::~Reactor() {
  if (Forked()) {
    impl_->thread.detach();  // it does not exist here
    (void)impl_.release();
    return;
  }
  if (impl_->thread.joinable()) {
    VERBENA_CHECK(Current() != this, "a reactor cannot be destroyed on its own thread");
    impl_->stop.store(true);
    impl_->WakeThread();
    impl_->thread.join();
  }
}

Reactor* Reactor::Current() { return tls_current; }

int64_t Reactor::NowNs() { return SteadyNs(); }

void Reactor::Post(Work& work) {
  if (Forked()) return;
  impl_->inbox.Push(work);
  impl_->WakeThread();
}

void Reactor::PostSeat(Work& work) {
  if (Forked() || impl_->RunFromUserCode(work)) return;
  impl_->rearm.store(true);
  impl_->QueueForSeat(work);
}

void Reactor::PostSend(Work& work) {
  if (!Forked() && !impl_->RunFromUserCode(work)) impl_->QueueForSeat(work);
}

bool Reactor::Impl::RunFromUserCode(Work& work) {
  if (tls_current != &reactor || !in_user_code || !seat_queue.Empty()) return false;
  if (!Reclaim()) {
    // Who took the lent seat has left it: what is begun now still leaves at the end of the tick.
    if (!TryTake()) return false;
    if (sleeper.load() != nullptr) {  // it needs the pollers armed, should this user code block
      WorkInSeat(&work);
      return true;
    }
    Entered();
  }
  work.run(&work);
  if (!seat_queue.Empty()) DrainSeatQueue();
  Lend();
  return true;
}

void Reactor::Impl::QueueForSeat(Work& work) {
  // Mostly the seat is free and nothing is queued: that needs no queue.
  if (seat_queue.Empty() && TryTake()) return WorkInSeat(&work);
  seat_queue.Push(work);
  const void* const holder = seat.load();
  if ((holder == nullptr || holder == lent_seat) && TryTake()) WorkInSeat(nullptr);
}

bool Reactor::TryEnter() { return impl_->TryEnter(); }

void Reactor::Leave() { impl_->Leave(); }

void Reactor::Attend() {
  if (tls_current == this || !impl_->dozing.load()) return;
  impl_->attend.store(true);
  if (!impl_->TryEnter()) return;  // whoever has the seat looks at it when leaving
  impl_->attend.store(false);
  impl_->Leave();
}

bool Reactor::InSeat() const {
  return impl_->seat.load(std::memory_order_relaxed) == ThreadToken();
}

void Reactor::Wake(const std::atomic<uint32_t>& done) {
  if (tls_driving != &done) impl_->waiters.Notify(done);
}

void Reactor::RunSoon(Work& work) {
  if (!InSeat()) {  // user code of the own thread
    Post(work);
    return;
  }
  work.next = nullptr;
  *impl_->user_end = &work;
  impl_->user_end = &work.next;
  if (tls_current == this || !options_.thread) return;
  if (!impl_->needed.load(std::memory_order_relaxed)) impl_->needed.store(true);
  impl_->WakeThread();
}

void Reactor::Arm(Timer& timer, int64_t due_ns) {
  VERBENA_DCHECK(InSeat());
  impl_->timers.Arm(timer, due_ns);
}

void Reactor::Cancel(Timer& timer) {
  VERBENA_DCHECK(InSeat() || timer.heap_index == ~0u);
  impl_->timers.Cancel(timer);
}

namespace {

// Adds or removes a poller for a thread that does not hold the seat.
struct InSeatJob : Work {
  InSeatJob(Reactor& r, Poller& p, void (Reactor::*m)(Poller&))
      : Work([](Work* work) {
          auto* job = static_cast<InSeatJob*>(work);
          Reactor& home = job->reactor;
          (home.*job->method)(job->poller);
          const std::atomic<uint32_t>& done_word = job->done;
          job->done.store(
              1);  // the waiter may destroy the job from now on; `done_word` is only compared
          home.Wake(done_word);
        }),
        reactor(r),
        poller(p),
        method(m) {}
  void Run() {
    reactor.PostSeat(*this);
    reactor.DriveUntil(done);
  }
  Reactor& reactor;
  Poller& poller;
  void (Reactor::*method)(Poller&);
  std::atomic<uint32_t> done{0};
};

}  // namespace

void Reactor::AddPoller(Poller& poller) {
  if (!InSeat()) return InSeatJob(*this, poller, &Reactor::AddPoller).Run();
  impl_->pollers.push_back(&poller);
  if (poller.fd() < 0 || !options_.thread) return;
  std::lock_guard lock(impl_->watch_mutex);
  impl_->watched.push_back(poller.fd());
  epoll_event event{.events = 0, .data = {.u64 = kPollerTag}};  // on when the seat is left
  VERBENA_CHECK(epoll_ctl(impl_->epoll_fd, EPOLL_CTL_ADD, poller.fd(), &event) == 0, "fd ",
                poller.fd(), ": ", std::strerror(errno));
  impl_->watch_on.store(false);
}

void Reactor::RemovePoller(Poller& poller) {
  if (!InSeat()) return InSeatJob(*this, poller, &Reactor::RemovePoller).Run();
  std::erase(impl_->pollers, &poller);
  std::lock_guard lock(impl_->watch_mutex);
  if (std::erase(impl_->watched, poller.fd()) != 0) {
    epoll_ctl(impl_->epoll_fd, EPOLL_CTL_DEL, poller.fd(), nullptr);
  }
}

void Reactor::BeginUserCode(const char* method) { impl_->stall->Begin(method); }
void Reactor::EndUserCode() { impl_->stall->End(); }

bool Reactor::Tick() {
  VERBENA_CHECK(!options_.thread, "Tick is for reactors without a thread");
  VERBENA_CHECK(impl_->TryEnter(), "another thread is in the seat");
  Reactor* const before = tls_current;
  tls_current = this;
  const bool active = impl_->Tick(true);
  tls_current = before;
  impl_->Leave();
  return active;
}

Reactor::Impl::Impl(Reactor& r)
    : reactor(r),
      spin_ns(absl::ToInt64Nanoseconds(r.options_.spin)),
      stall(std::make_shared<StallWatch>(r.options_.name, r.options_.stall_report)) {}

Reactor::Impl::~Impl() {
  stall->Stop();
  for (int fd : {epoll_fd, wake_fd, timer_fd}) {
    if (fd >= 0) ::close(fd);
  }
}

absl::Status Reactor::Impl::Open() {
  epoll_fd = epoll_create1(EPOLL_CLOEXEC);
  wake_fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  timer_fd = timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK);
  if (epoll_fd < 0 || wake_fd < 0 || timer_fd < 0) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "no descriptors for reactor ", reactor.options_.name, ": ", std::strerror(errno)));
  }
  epoll_event wake{.events = EPOLLIN, .data = {.u64 = kWakeTag}};
  epoll_event timer{.events = EPOLLIN, .data = {.u64 = kTimerTag}};
  if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, wake_fd, &wake) != 0 ||
      epoll_ctl(epoll_fd, EPOLL_CTL_ADD, timer_fd, &timer) != 0) {
    return absl::ResourceExhaustedError(
        absl::StrCat("epoll_ctl for reactor ", reactor.options_.name, ": ", std::strerror(errno)));
  }
  return absl::OkStatus();
}

}  // namespace verbena::reactor
