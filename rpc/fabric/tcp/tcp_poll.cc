// Frames, and which sockets are looked at. A small message costs one receive and one send; nothing
// here allocates or locks in the steady state.
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/clock.h"
#include "rpc/fabric/tcp/socket_name.h"
#include "rpc/fabric/tcp/tcp_fabric.h"

namespace verbena::fabric::tcp {
namespace {

// With more active links than these, epoll is asked each tick instead of each socket: a receive
// that finds nothing costs about as much as epoll_wait.
constexpr size_t kDirectLinksMax = 6;
// Armed for less, and nobody has slept: a blocking caller arms at the end of each call. What came
// on sockets that are not polled directly is found by the next scan in turn.
constexpr int64_t kSleptNs = 20'000;
// Between two looks at the sockets that are not read directly, in ticks and in direct reads (0.2 us
// each). Lower costs the direct ones system calls; higher, and the first bytes on a resting socket
// wait for longer.
constexpr uint64_t kTicksPerScan = 16;
constexpr size_t kReadsPerScan = 64;
// A link that was read directly for one to two of these (a millisecond and more) without being
// armed leaves epoll, which costs its every message 0.1 us.
constexpr uint64_t kTicksPerCool = 4096;
constexpr int kSocketsPerScan = 64;
// A frame within so many ticks: bulk lanes get little of a tick.
constexpr uint32_t kBusyTicks = 64;
// Ticks in which a full socket is tried again before it is left to epoll.
constexpr uint32_t kStalledTicksMax = 256;
constexpr uint64_t kBell = ~uint64_t{0};

}  // namespace

void TcpFabric::Start(LinkId id) {
  const auto index = static_cast<size_t>(id);
  if (links_.size() <= index) links_.resize(index + 1);
  VERBENA_CHECK(links_[index] == nullptr, "link ", index, " is started already");
  int fd = -1;
  uint64_t serial = 0;
  {
    const std::lock_guard lock(setup_mutex_);
    const auto it = setups_.find(id);
    VERBENA_CHECK(it != setups_.end() && it->second.stream >= 0, "Start without Complete");
    fd = std::exchange(it->second.stream, -1);
    serial = it->second.serial;
  }
  links_[index] = std::make_unique<Link>(id, serial, pool_, buffers_);
  Link& link = *links_[index];
  link.stream.Open(fd);
  ++watched_;
  WatchControl(link);
  Heat(link);
}

bool TcpFabric::AcquireFrame(LinkId id, OutFrame& frame) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) return false;
  if (link->stream.Acquire(frame)) [[likely]]
    return true;
  if (!link->wants_sendable) want_buffer_.push_back(id);
  link->wants_sendable = true;
  return false;
}

void TcpFabric::Discard(LinkId id, const OutFrame& frame) {
  Link* link = Find(id);
  if (link == nullptr) {
    pool_.Release(frame.token);
  } else {
    link->stream.Discard(frame);
  }
  buffers_came_back_ = true;
}

void TcpFabric::Send(LinkId id, absl::Span<const OutFrame> frames) {
  Link* link = Find(id);
  if (link == nullptr || link->closing) {
    for (const OutFrame& frame : frames) Discard(id, frame);
    return;
  }
  buffers_came_back_ = true;
  link->active = true;
  if (!link->hot) Heat(*link);
  const absl::Status status = link->stream.Send(frames);
  if (!status.ok()) [[unlikely]]
    return BeginDown(*link, status);
  if (link->stream.backlogged()) [[unlikely]]
    Backlogged(*link);
}

bool TcpFabric::PollControl(Link& link, EventSink& sink) {
  if (link.closing) return false;
  link.polled_tick = ticks_;
  bool moved = false;
  const auto deliver = [&](absl::Span<const std::byte> frame) {
    sink.OnFrame(link.id, frame);
    return !link.closing;
  };
  const absl::Status status = link.stream.Receive(deliver, moved);
  if (moved) {
    link.active = true;
    busy_ticks_ = kBusyTicks;
  }
  if (!status.ok() && !link.closing) [[unlikely]] {
    BeginDown(link, status);
    return true;
  }
  return moved;
}

bool TcpFabric::Poll(EventSink& sink) {
  // A process that talks over another fabric alone pays next to nothing here: every link that is
  // up has sockets that are watched.
  if (watched_ == 0 && !inbox_->any() && events_.empty() && closing_.empty() &&
      lane_breaks_.empty()) {
    return false;
  }
  return PollAll(sink);
}

bool TcpFabric::PollAll(EventSink& sink) {
  ++ticks_;
  bool any = false;
  if (busy_ticks_ > 0) --busy_ticks_;
  if (inbox_->any()) [[unlikely]]
    TakeNews();
  const bool many = hot_.size() > kDirectLinksMax;
  if (!many) {
    unscanned_ += hot_.size();
    for (size_t i = 0; i < hot_.size(); ++i) any |= PollControl(*hot_[i], sink);
  }
  if (watched_ != 0) {
    const bool due = ticks_ % kTicksPerScan == 0 && (hot_.empty() || unscanned_ >= kReadsPerScan);
    if (many || scan_ || due) any |= Scan(sink);
  }
  if (!backlogged_.empty()) [[unlikely]]
    any |= FlushBacklogs();
  // What frames of this tick woke runs after it: bulk lanes let it, but not twice in a row.
  const bool frames = busy_ticks_ == kBusyTicks;
  bulk_waited_ = frames && !bulk_waited_ && !engaged_.empty();
  if (!engaged_.empty() && !bulk_waited_) any |= PollLanes();
  if (copies_.busy() || !uncopied_.empty()) [[unlikely]]
    any |= PollCopies();
  if (buffers_came_back_ && !want_buffer_.empty()) [[unlikely]]
    OfferBuffers();
  if (!closing_.empty() || !lane_breaks_.empty()) [[unlikely]]
    any |= AdvanceEnds();
  if (!events_.empty()) {
    Deliver(sink);
    any = true;
  }
  if (ticks_ % kTicksPerCool == 0) [[unlikely]]
    CoolIdle();
  return any;
}

bool TcpFabric::Scan(EventSink& sink) {
  scan_ = false;
  unscanned_ = 0;
  epoll_event ready[kSocketsPerScan];
  const int n = epoll_wait(epoll_fd_, ready, kSocketsPerScan, 0);
  bool any = false;
  for (int i = 0; i < n; ++i) {
    if (ready[i].data.u64 == kBell) {
      TakeNews();
      any = true;
    } else {
      any |= TakeSocketEvent(ready[i].data.u64, ready[i].events, sink);
    }
  }
  return any;
}

bool TcpFabric::TakeSocketEvent(uint64_t word, uint32_t ready, EventSink& sink) {
  const SocketName name = SocketName::FromWord(word);
  Link* link = Find(name.link);
  const bool same = link != nullptr && !link->closing &&
                    (static_cast<uint32_t>(link->serial) & SocketName::kSerialMask) == name.serial;
  if (!same) return false;
  if (!name.control()) {
    LaneEnd& end = link->EndOf(Lane{name.index(), name.role(), 0});
    if (!end.exists()) return false;
    if (end.out_armed && (ready & EPOLLOUT) != 0) {
      end.out_armed = false;
      Watch(end.fd(), word, false, false);
    }
    Engage(end);
    return true;
  }
  bool any = false;
  if ((ready & EPOLLOUT) != 0) FlushBacklog(*link, any);
  if ((ready & ~uint32_t{EPOLLOUT}) != 0 && link->polled_tick != ticks_) {
    any |= PollControl(*link, sink);
  }
  if (any && !link->hot && !link->closing) Heat(*link);
  return any;
}

void TcpFabric::Backlogged(Link& link) {
  if (link.backlogged) return;
  link.backlogged = true;
  link.stalled_ticks = 0;
  backlogged_.push_back(&link);
}

bool TcpFabric::FlushBacklogs() {
  bool any = false;
  for (Link* link : backlogged_) {
    if (link->closing) continue;
    if (link->stalled_ticks < kStalledTicksMax) {
      FlushBacklog(*link, any);
    } else if (!link->out_armed) {
      ArmOut(*link);
    }
  }
  std::erase_if(backlogged_, [](Link* link) {
    link->backlogged = !link->closing && link->stream.backlogged();
    return !link->backlogged;
  });
  return any;
}

void TcpFabric::FlushBacklog(Link& link, bool& moved) {
  bool went = false;
  const absl::Status status = link.stream.Flush(went);
  link.stalled_ticks = went ? 0 : link.stalled_ticks + 1;
  if (went) buffers_came_back_ = moved = true;
  if (!status.ok()) return BeginDown(link, status);
  if (link.out_armed && !link.stream.backlogged()) {
    link.out_armed = false;
    WatchControl(link);
  }
}

// Tells links whose AcquireFrame failed, and would not now.
void TcpFabric::OfferBuffers() {
  buffers_came_back_ = false;
  std::erase_if(want_buffer_, [this](LinkId id) {
    Link* link = Find(id);
    if (link == nullptr || link->closing) return true;
    if (!pool_.Allows(link->stream.held())) return false;
    link->wants_sendable = false;
    events_.Sendable(id);
    return true;
  });
}

void TcpFabric::Heat(Link& link) {
  link.active = true;
  if (link.hot) return;
  link.hot = true;
  hot_.push_back(&link);
  if (hot_.size() == kDirectLinksMax + 1) WatchHot();
}

void TcpFabric::CoolIdle() {
  const bool rest = !std::exchange(was_armed_, false) && hot_.size() <= kDirectLinksMax;
  std::erase_if(hot_, [&](Link* link) {
    link->hot = std::exchange(link->active, false) && !link->closing;
    if (link->closing) return true;
    if (!link->hot) {
      if (!link->in_epoll) WatchControl(*link);
    } else if (rest && link->in_epoll && !link->out_armed) {
      link->in_epoll = false;
      epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, link->stream.fd(), nullptr);
    }
    return !link->hot;
  });
}

// Sockets that were left out while they were read directly.
void TcpFabric::WatchHot() {
  for (Link* link : hot_) {
    if (!link->in_epoll && !link->closing) WatchControl(*link);
  }
}

void TcpFabric::WatchControl(Link& link) {
  epoll_event event{};
  event.events = link.out_armed ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = SocketName::Control(link.id, link.serial).word();
  const int how = link.in_epoll ? EPOLL_CTL_MOD : EPOLL_CTL_ADD;
  const int done = epoll_ctl(epoll_fd_, how, link.stream.fd(), &event);
  VERBENA_CHECK(done == 0, "epoll_ctl: errno ", errno);
  link.in_epoll = true;
}

void TcpFabric::UnwatchControl(Link& link) {
  --watched_;
  if (std::exchange(link.in_epoll, false)) {
    // Before it is closed: a forked child that holds the socket would keep it in the set.
    epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, link.stream.fd(), nullptr);
  }
}

void TcpFabric::Watch(int fd, uint64_t name, bool out, bool add) {
  epoll_event event{};
  event.events = out ? EPOLLIN | EPOLLOUT : EPOLLIN;
  event.data.u64 = name;
  const int done = epoll_ctl(epoll_fd_, add ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
  VERBENA_CHECK(done == 0, "epoll_ctl: errno ", errno);
  if (add) ++watched_;
}

void TcpFabric::Unwatch(int fd) {
  if (fd >= 0 && epoll_ctl(epoll_fd_, EPOLL_CTL_DEL, fd, nullptr) == 0) --watched_;
}

void TcpFabric::ArmOut(Link& link) {
  link.out_armed = true;
  WatchControl(link);
}

void TcpFabric::ArmOut(LaneEnd& end) {
  end.out_armed = true;
  const Link& link = *end.link;
  Watch(end.fd(), SocketName::Bulk(link.id, link.serial, end.lane).word(), true, false);
}

bool TcpFabric::Reports() const {
  return !events_.empty() || !closing_.empty() || !lane_breaks_.empty() || inbox_->any() ||
         copies_.busy() || !uncopied_.empty() || (buffers_came_back_ && !want_buffer_.empty());
}

bool TcpFabric::HasLater() const {
  return Reports() || !backlogged_.empty() || !engaged_.empty();  // Arm watches the latter
}

bool TcpFabric::Arm() {
  if (Reports()) return true;
  was_armed_ = true;
  WatchHot();
  for (Link* link : backlogged_) {
    if (!link->closing && !link->out_armed) ArmOut(*link);
  }
  for (LaneEnd* end : engaged_) {
    if (end->ready()) return true;
    if (end->blocked() && !end->out_armed) ArmOut(*end);
  }
  armed_ns_ = SteadyNs();
  return false;  // what has arrived since the last poll is ringing: the descriptor stays readable
}

void TcpFabric::Disarm() { scan_ |= SteadyNs() - armed_ns_ >= kSleptNs; }

}  // namespace verbena::fabric::tcp
