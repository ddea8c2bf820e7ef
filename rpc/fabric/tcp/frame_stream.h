#pragma once
// tcp::FrameStream: the control lane of one link, on the stream where HELLO was exchanged. Frames
// lie back to back: a frame's first two bytes are its length, 0 meaning 65,536. What the socket
// does not take waits here, at most limits::kTcpFramesPerLinkMax buffers of it. Reactor thread
// only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "rpc/base/limits.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/tcp/frame_pool.h"

namespace verbena::fabric::tcp {

// Where a fabric's streams receive: one buffer for all, since a stream keeps only what is not yet
// a whole frame.
class ReceiveBuffers {
 public:
  static constexpr size_t kBytes = 256 * 1024;

  ReceiveBuffers() : shared_(new std::byte[kBytes]) {}
  std::byte* shared() { return shared_.get(); }
  // Of a segment, for the beginning of a frame.
  std::unique_ptr<std::byte[]> Take();
  void Give(std::unique_ptr<std::byte[]> buffer);

 private:
  std::unique_ptr<std::byte[]> shared_;
  std::vector<std::unique_ptr<std::byte[]>> spare_;
};

class FrameStream {
 public:
  FrameStream(FramePool& pool, ReceiveBuffers& buffers) : pool_(pool), buffers_(buffers) {}
  ~FrameStream() { Close(); }
  FrameStream(const FrameStream&) = delete;
  FrameStream& operator=(const FrameStream&) = delete;

  // Takes `fd`, prepared.
  void Open(int fd) { fd_ = fd; }
  // Tries once more to send what waits; gives all buffers back.
  void Close();
  int fd() const { return fd_; }

  bool Acquire(OutFrame& frame);
  void Discard(const OutFrame& frame);
  // Not OK: the connection is broken.
  absl::Status Send(absl::Span<const OutFrame> frames);
  // Whether frames wait for the socket.
  bool backlogged() const { return count_ > 0; }
  uint32_t held() const { return held_; }
  // Tries to send what waits. Sets `moved` if a byte went.
  absl::Status Flush(bool& moved);

  // Receives once and hands whole frames to `deliver`, until it returns false. Sets `moved` if a
  // byte came. UNAVAILABLE: the peer closed or is gone; DATA_LOSS: a frame that cannot be.
  absl::Status Receive(absl::FunctionRef<bool(absl::Span<const std::byte>)> deliver, bool& moved);

 private:
  struct Waiting {
    uint32_t token = 0;
    uint32_t bytes = 0;
  };

  absl::Status SendOne(const OutFrame& frame, bool& done);
  void Sent(size_t bytes);
  void Keep(const std::byte* rest, size_t bytes);

  FramePool& pool_;
  ReceiveBuffers& buffers_;
  int fd_ = -1;
  uint32_t held_ = 0;  // acquired or waiting

  std::array<Waiting, limits::kTcpFramesPerLinkMax> waiting_;  // a ring
  uint32_t first_ = 0;
  uint32_t count_ = 0;
  uint32_t first_sent_ = 0;  // bytes of the first

  std::unique_ptr<std::byte[]> partial_;
  size_t partial_bytes_ = 0;
};

}  // namespace verbena::fabric::tcp
