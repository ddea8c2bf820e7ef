#include "rpc/fabric/tcp/frame_stream.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/fabric/tcp/sockets.h"

namespace verbena::fabric::tcp {
namespace {

constexpr uint32_t kFrameBytesMin = 8;
constexpr size_t kSpareMax = 64;
constexpr int kDrainsMax = 256;
static_assert(limits::kTcpSegmentBytes == 65536, "a length of 0 stands for it");

bool WouldBlock() { return errno == EAGAIN || errno == EWOULDBLOCK; }

}  // namespace

std::unique_ptr<std::byte[]> ReceiveBuffers::Take() {
  if (spare_.empty()) return std::unique_ptr<std::byte[]>(new std::byte[limits::kTcpSegmentBytes]);
  std::unique_ptr<std::byte[]> buffer = std::move(spare_.back());
  spare_.pop_back();
  return buffer;
}

void ReceiveBuffers::Give(std::unique_ptr<std::byte[]> buffer) {
  if (spare_.size() < kSpareMax) spare_.push_back(std::move(buffer));
}

void FrameStream::Close() {
  if (fd_ < 0) return;
  bool moved = false;
  (void)Flush(moved);
  // What the peer sent and nobody reads would turn our end of the conversation into a reset, and
  // the peer might lose frames that are still under way.
  std::byte unread[16 * 1024];  // not the shared buffer: a sink may be looking at a frame in it
  for (int i = 0; i < kDrainsMax && recv(fd_, unread, sizeof unread, MSG_DONTWAIT) > 0; ++i) {
  }
  for (; count_ > 0; --count_, ++first_) {
    pool_.Release(waiting_[first_ % waiting_.size()].token);
    --held_;
  }
  if (partial_ != nullptr) buffers_.Give(std::move(partial_));
  EndSocket(fd_);
}

bool FrameStream::Acquire(OutFrame& frame) {
  if (!pool_.Allows(held_)) return false;
  ++held_;
  frame.token = pool_.Acquire();
  frame.data = pool_.Data(frame.token);
  frame.capacity = limits::kTcpSegmentBytes;
  frame.bytes = 0;
  return true;
}

void FrameStream::Discard(const OutFrame& frame) {
  VERBENA_DCHECK(held_ > 0);
  pool_.Release(frame.token);
  --held_;
}

absl::Status FrameStream::Send(absl::Span<const OutFrame> frames) {
  for (const OutFrame& frame : frames) {
    VERBENA_DCHECK(frame.bytes >= kFrameBytesMin && frame.bytes <= frame.capacity, "frame of ",
                   frame.bytes);
    const auto length = static_cast<uint16_t>(frame.bytes);
    memcpy(frame.data, &length, sizeof length);
  }
  if (frames.size() == 1 && count_ == 0) [[likely]] {
    bool done = false;
    absl::Status status = SendOne(frames[0], done);
    if (done || !status.ok()) return status;
  } else {
    for (const OutFrame& frame : frames) {
      VERBENA_DCHECK(count_ < waiting_.size());
      waiting_[(first_ + count_++) % waiting_.size()] = {frame.token, frame.bytes};
    }
  }
  bool moved = false;
  return Flush(moved);
}

// The common case, without a vector: the socket takes the frame whole.
absl::Status FrameStream::SendOne(const OutFrame& frame, bool& done) {
  ssize_t n = 0;
  do {
    n = send(fd_, frame.data, frame.bytes, MSG_DONTWAIT | MSG_NOSIGNAL);
  } while (n < 0 && errno == EINTR);
  if (n == static_cast<ssize_t>(frame.bytes)) {
    Discard(frame);
    done = true;
    return absl::OkStatus();
  }
  if (n < 0 && !WouldBlock()) {
    absl::Status status = SystemError(absl::StatusCode::kUnavailable, "send");
    Discard(frame);
    return status;
  }
  waiting_[first_ % waiting_.size()] = {frame.token, frame.bytes};
  count_ = 1;
  first_sent_ = n > 0 ? static_cast<uint32_t>(n) : 0;
  return absl::OkStatus();
}

absl::Status FrameStream::Flush(bool& moved) {
  while (count_ > 0) {
    std::array<iovec, limits::kTcpFramesPerLinkMax> pieces;
    size_t bytes = 0;
    for (uint32_t i = 0; i < count_; ++i) {
      const Waiting& frame = waiting_[(first_ + i) % waiting_.size()];
      const uint32_t skip = i == 0 ? first_sent_ : 0;
      pieces[i] = {pool_.Data(frame.token) + skip, frame.bytes - skip};
      bytes += pieces[i].iov_len;
    }
    msghdr message{};
    message.msg_iov = pieces.data();
    message.msg_iovlen = count_;
    const ssize_t n = sendmsg(fd_, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
    if (n < 0) {
      if (errno == EINTR) continue;
      return WouldBlock() ? absl::OkStatus() : SystemError(absl::StatusCode::kUnavailable, "send");
    }
    moved = true;
    Sent(static_cast<size_t>(n));
    if (static_cast<size_t>(n) < bytes) return absl::OkStatus();
  }
  return absl::OkStatus();
}

void FrameStream::Sent(size_t bytes) {
  bytes += first_sent_;
  while (count_ > 0 && bytes >= waiting_[first_ % waiting_.size()].bytes) {
    const Waiting& frame = waiting_[first_ % waiting_.size()];
    bytes -= frame.bytes;
    pool_.Release(frame.token);
    --held_;
    --count_;
    ++first_;
  }
  first_sent_ = static_cast<uint32_t>(bytes);
}

absl::Status FrameStream::Receive(absl::FunctionRef<bool(absl::Span<const std::byte>)> deliver,
                                  bool& moved) {
  std::byte* const buffer = buffers_.shared();
  const size_t kept = partial_bytes_;
  const ssize_t n = recv(fd_, buffer + kept, ReceiveBuffers::kBytes - kept, MSG_DONTWAIT);
  if (n < 0) {
    if (WouldBlock() || errno == EINTR) [[likely]]
      return absl::OkStatus();
    return SystemError(absl::StatusCode::kUnavailable, "the peer is gone");
  }
  if (n == 0) {
    return absl::UnavailableError(kept == 0 ? "tcp: the peer closed the link"
                                            : "tcp: the peer closed the link within a frame");
  }
  moved = true;
  if (kept > 0) memcpy(buffer, partial_.get(), kept);
  const size_t end = kept + static_cast<size_t>(n);
  size_t at = 0;
  while (end - at >= sizeof(uint16_t)) {
    uint16_t length = 0;
    memcpy(&length, buffer + at, sizeof length);
    const uint32_t bytes = length == 0 ? limits::kTcpSegmentBytes : length;
    if (bytes < kFrameBytesMin) [[unlikely]] {
      return absl::DataLossError(absl::StrCat("tcp: a frame of ", bytes, " bytes; limits are ",
                                              kFrameBytesMin, " and ", limits::kTcpSegmentBytes));
    }
    if (bytes > end - at) break;
    if (!deliver({buffer + at, bytes})) return absl::OkStatus();
    at += bytes;
  }
  Keep(buffer + at, end - at);
  return absl::OkStatus();
}

void FrameStream::Keep(const std::byte* rest, size_t bytes) {
  partial_bytes_ = bytes;
  if (bytes > 0) {
    if (partial_ == nullptr) partial_ = buffers_.Take();
    memcpy(partial_.get(), rest, bytes);
  } else if (partial_ != nullptr) [[unlikely]] {
    buffers_.Give(std::move(partial_));
  }
}

}  // namespace verbena::fabric::tcp
