#include "rpc/session/hello_socket.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/fabric/available.h"
#include "rpc/reactor/service_threads.h"

namespace verbena::session {

HelloSocket::HelloSocket(UniqueFd stream, Events events)
    : stream_(std::move(stream)), events_(std::move(events)) {
  reactor::Watch::Get().AddFd(stream_.get(), EPOLLRDHUP, [this](uint32_t e) { OnEvents(e); });
}

HelloSocket::~HelloSocket() {
  if (stream_) reactor::Watch::Get().RemoveFd(stream_.get());
}

UniqueFd HelloSocket::Take() {
  if (stream_) reactor::Watch::Get().RemoveFd(stream_.get());
  return std::move(stream_);
}

void HelloSocket::ReadNext() {
  reading_ = true;
  in_.clear();
  header_known_ = false;
  Want();
}

void HelloSocket::Send(std::string message, absl::AnyInvocable<void()> sent) {
  out_ += message;
  sent_ = std::move(sent);
  Want();
}

void HelloSocket::Want() {
  if (!stream_ || ended_) return;
  uint32_t events = EPOLLRDHUP;
  if (reading_) events |= EPOLLIN;
  if (!out_.empty()) events |= EPOLLOUT;
  reactor::Watch::Get().ModifyFd(stream_.get(), events);
}

void HelloSocket::OnEvents(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !out_.empty()) return Write();
  if (reading_ && (events & (EPOLLIN | EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) return Read();
  if ((events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0) {
    End(absl::UnavailableError("the peer closed the connection in the middle of the handshake"));
  }
}

void HelloSocket::Read() {
  for (;;) {
    const size_t want = Wanted();
    if (in_.size() < want) {
      const size_t had = in_.size();
      in_.resize(want);
      const ssize_t n = ::recv(stream_.get(), in_.data() + had, want - had, 0);
      in_.resize(had + (n > 0 ? static_cast<size_t>(n) : 0));
      if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
      if (n < 0)
        return End(absl::UnavailableError(absl::StrCat("receive: ", std::strerror(errno))));
      if (n == 0) {
        return End(
            anything_read_
                ? absl::UnavailableError("the peer closed the connection in the middle "
                                         "of the handshake")
                : absl::NotFoundError("the peer closed the connection before its first byte"));
      }
      if (!CheckFirstByte()) return;
      if (in_.size() < want) continue;
    }
    if (header_known_) break;
    if (want == fabric::kGreetingBytes) {
      reading_ = false;
      return events_.on_greeting(std::move(in_));  // may destroy this
    }
    if (Wanted() != want) continue;
    const absl::StatusOr<wire::HelloHeader> header = wire::DecodeHelloHeader(in_);
    if (!header.ok()) return End(header.status());
    header_ = *header;
    header_known_ = true;
    in_.clear();
  }
  reading_ = false;
  first_message_ = false;
  Want();
  events_.on_message(header_.type, std::move(in_));  // may destroy this
}

size_t HelloSocket::Wanted() const {
  if (header_known_) return header_.body_bytes;
  const bool greeting =
      first_message_ && events_.on_greeting && in_.size() >= 4 && fabric::IsGreeting(in_);
  return greeting ? fabric::kGreetingBytes : wire::kHelloHeaderBytes;
}

bool HelloSocket::CheckFirstByte() {
  if (anything_read_) return true;
  anything_read_ = true;
  if (static_cast<uint8_t>(in_[0]) != wire::kTlsFirstByte) return true;
  End(absl::UnauthenticatedError("the peer speaks TLS, which is not configured here"));
  return false;
}

void HelloSocket::Write() {
  const ssize_t n = ::send(stream_.get(), out_.data(), out_.size(), MSG_NOSIGNAL);
  if (n < 0) {
    if (errno == EAGAIN || errno == EINTR) return;
    // What the peer said before it closed is worth more than this error: read it first.
    if (reading_) return Read();
    return End(absl::UnavailableError(absl::StrCat("send: ", std::strerror(errno))));
  }
  out_.erase(0, static_cast<size_t>(n));
  if (!out_.empty()) return;
  Want();
  if (sent_) std::exchange(sent_, nullptr)();  // may destroy this
}

void HelloSocket::End(absl::Status why) {
  if (ended_) return;
  ended_ = true;
  reactor::Watch::Get().ModifyFd(stream_.get(), EPOLLET);  // stays broken: hear no more of it
  events_.on_end(std::move(why));                          // may destroy this
}

}  // namespace verbena::session
