#pragma once
// HelloSocket: reads and writes the handshake's messages on a stream, event-driven, on the watch
// thread. It reads one message at a time and not a byte more, so that whoever gets the stream
// afterwards finds it at a message's boundary.
#include <cstdint>
#include <string>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "rpc/base/unique_fd.h"
#include "rpc/wire/hello.h"

namespace verbena::session {

// Watch thread only, like its callbacks. A callback may destroy the socket.
class HelloSocket {
 public:
  struct Events {
    // A whole message. No more are read until ReadNext.
    absl::AnyInvocable<void(wire::HelloType type, std::string body)> on_message;
    // A fabric's greeting in place of the first message (fabric/available.h); nothing more is read.
    // Empty: none is expected.
    absl::AnyInvocable<void(std::string greeting)> on_greeting;
    // The end: closed by the peer, broken, or not this protocol. At most once, and the last.
    // kNotFound: the peer closed before its first byte; kUnauthenticated: it speaks TLS.
    absl::AnyInvocable<void(absl::Status why)> on_end;
  };
  // `stream` is connected and non-blocking.
  HelloSocket(UniqueFd stream, Events events);
  ~HelloSocket();
  HelloSocket(const HelloSocket&) = delete;
  HelloSocket& operator=(const HelloSocket&) = delete;

  void ReadNext();
  // Queues a message; `sent`, if given, runs when the kernel has taken all of it.
  void Send(std::string message, absl::AnyInvocable<void()> sent = nullptr);
  // The stream, no longer watched.
  UniqueFd Take();
  int fd() const { return stream_.get(); }

 private:
  void OnEvents(uint32_t events);
  void Read();
  void Write();
  void Want();
  void End(absl::Status why);
  bool CheckFirstByte();
  size_t Wanted() const;

  UniqueFd stream_;
  Events events_;
  std::string in_;
  bool header_known_ = false;
  bool anything_read_ = false;
  bool first_message_ = true;
  wire::HelloHeader header_;
  bool reading_ = false;
  bool ended_ = false;
  std::string out_;
  absl::AnyInvocable<void()> sent_;
};

}  // namespace verbena::session
