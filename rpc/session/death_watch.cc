#include "rpc/session/death_watch.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "rpc/base/keep_alive.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/engine_impl.h"
#include "rpc/session/link_impl.h"

namespace verbena::session {

// Deletes itself when it has run; by name, since the link may be gone by then.
struct DeathWatch::DeathWork : reactor::Work {
  DeathWork(LinkId l, uint64_t s)
      : reactor::Work([](reactor::Work* work) { static_cast<DeathWork*>(work)->Tell(); }),
        link(l),
        serial(s) {}
  void Tell() {
    const std::unique_ptr<DeathWork> self(this);
    LinkImpl* const found = engine->FindLink(link, serial);
    if (found != nullptr) found->BeginClose(absl::UnavailableError(why));
  }
  const LinkId link;
  const uint64_t serial;
  EngineImpl* engine = nullptr;
  const char* why = "";
};

DeathWatch::DeathWatch(std::shared_ptr<EngineGate> gate, LinkId link, uint64_t serial,
                       int stream_fd, int pidfd)
    : gate_(std::move(gate)),
      stream_fd_(stream_fd),
      pidfd_(pidfd),
      work_(std::make_unique<DeathWork>(link, serial)) {
  if (stream_fd_ >= 0) {
    KeepAlive(stream_fd_);
    reactor::Watch::Get().AddFd(stream_fd_, EPOLLIN | EPOLLRDHUP, [this](uint32_t) { OnStream(); });
  }
  if (pidfd_ >= 0) reactor::Watch::Get().AddFd(pidfd_, EPOLLIN, [this](uint32_t) { OnPid(); });
}

DeathWatch::~DeathWatch() {
  // Both removed before either is closed: a callback that runs meanwhile still names both, and the
  // number of a closed one may be somebody else's by then.
  for (const int fd : {stream_fd_, pidfd_}) {
    if (fd >= 0) reactor::Watch::Get().RemoveFd(fd);
  }
  for (const int fd : {stream_fd_, pidfd_}) {
    if (fd >= 0) close(fd);
  }
}

void DeathWatch::OnStream() {
  char byte;
  const ssize_t got = recv(stream_fd_, &byte, 1, MSG_PEEK | MSG_DONTWAIT);
  if (got < 0 && (errno == EAGAIN || errno == EINTR)) return;
  const bool silent = got < 0 && (errno == ETIMEDOUT || errno == EHOSTUNREACH);
  Fire(got > 0  ? "the peer sent bytes on a socket that only shows its life"
       : silent ? "the peer's machine shows no sign of life"
                : "the peer closed its socket");
}

void DeathWatch::OnPid() { Fire("the peer's process ended"); }

void DeathWatch::Fire(const char* why) {
  DeathWork* work = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    work = work_.release();
  }
  if (work == nullptr) return;
  // Both stay readable: hear no more of them.
  for (const int fd : {stream_fd_, pidfd_}) {
    if (fd >= 0) reactor::Watch::Get().ModifyFd(fd, EPOLLET);
  }
  work->why = why;
  // Last: the seat may be free, and then the link, with this watch, may be gone when it returns.
  const std::shared_ptr<EngineGate> gate = gate_;
  if (!gate->RunInSeat(*work, &work->engine)) delete work;
}

}  // namespace verbena::session
