#pragma once
// Streams, with gRPC's names. Each Read or Write is one operation: co_await it, or (client) Get()
// it, or give it Then(). `false` means: no more. Then ask Finish() (client) or status() (server)
// why.
//
// The shapes are final; this version of the runtime does not carry streams yet: every Read and
// Write gives false, and Finish() and status() say UNIMPLEMENTED.
#include <coroutine>
#include <utility>

#include "absl/status/status.h"
#include "verbena/call.h"

namespace verbena {
namespace internal {

// One stream of one call.
class StreamRef {
 public:
  StreamRef() = default;
  static StreamRef Unimplemented() { return StreamRef(); }
  absl::Status status() const;
};

// An operation that has ended with this status. The result is one reference, the caller's.
Operation* EndedOperation(absl::Status status);

// One read or write. Neither copyable nor movable: it lives in the expression or variable that
// started it.
class StreamOp {
 public:
  explicit StreamOp(StreamRef) {}
  StreamOp(const StreamOp&) = delete;
  StreamOp& operator=(const StreamOp&) = delete;
  bool await_ready() const { return true; }
  void await_suspend(std::coroutine_handle<>) {}
  bool await_resume() { return false; }
  bool Get() { return false; }
  // What was read into must live until the callback.
  template <class F>
  void Then(F callback) {
    PostCallback([f = std::move(callback)]() mutable { std::move(f)(false); });
  }
};

// clang-format 14 takes the constructor for something else.
// clang-format off
template <class M>
class [[nodiscard("nothing was read: co_await it, Get() it or give it Then()")]] ReadOp
    : public StreamOp {
 public:
  ReadOp(StreamRef stream, M&) : StreamOp(stream) {}
};
// clang-format on
class [[nodiscard(
    "wait for the stream to take more, else memory grows: co_await it, Get() it or give it "
    "Then()")]] WriteOp : public StreamOp {
 public:
  using StreamOp::StreamOp;
};

class ClientStreamBase {
 public:
  explicit ClientStreamBase(StreamRef stream) : stream_(stream) {}
  ClientStreamBase(ClientStreamBase&&) noexcept = default;
  ClientStreamBase& operator=(ClientStreamBase&&) noexcept = default;
  void Cancel() {}

 protected:
  Operation* FinishOperation() { return EndedOperation(stream_.status()); }
  StreamRef stream_;
};

class ServerStreamBase {
 public:
  explicit ServerStreamBase(StreamRef stream) : stream_(stream) {}
  // After `false`: OK if the client ended its side cleanly, else why the stream broke. Check before
  // committing.
  absl::Status status() const { return stream_.status(); }

 protected:
  StreamRef stream_;
};

}  // namespace internal

// Client side. Move-only; dropping one cancels its call. One Read and one Write may be in flight at
// a time.
template <class R>
class [[nodiscard("dropping a stream cancels it")]] ClientReader
    : public internal::ClientStreamBase {
 public:
  using ClientStreamBase::ClientStreamBase;
  internal::ReadOp<R> Read(R & message) { return {stream_, message}; }
  internal::ReadOp<R> Read(R && message) = delete;  // needs a named message to read into
  // The call's status. Unread messages are discarded.
  Call<void> Finish() { return Call<void>(FinishOperation()); }
};
template <class W, class Reply>
class [[nodiscard("dropping a stream cancels it")]] ClientWriter
    : public internal::ClientStreamBase {
 public:
  using ClientStreamBase::ClientStreamBase;
  // Has serialised the message when it returns; the operation waits for room for the next one.
  internal::WriteOp Write(const W&) { return internal::WriteOp(stream_); }
  // Ends the writing and yields the reply.
  Call<Reply> Finish() { return Call<Reply>(FinishOperation()); }
};
template <class W, class R>
class [[nodiscard("dropping a stream cancels it")]] ClientReaderWriter
    : public internal::ClientStreamBase {
 public:
  using ClientStreamBase::ClientStreamBase;
  internal::ReadOp<R> Read(R & message) { return {stream_, message}; }
  internal::ReadOp<R> Read(R && message) = delete;  // needs a named message to read into
  internal::WriteOp Write(const W&) { return internal::WriteOp(stream_); }
  void WritesDone() {}
  Call<void> Finish() { return Call<void>(FinishOperation()); }
};

// Server side, for coroutine handlers: co_await only. A handle, passed by value: it may outlive the
// handler, its operations then yield false.
template <class W>
class ServerWriter : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  internal::WriteOp Write(const W&) { return internal::WriteOp(stream_); }
};
template <class R>
class ServerReader : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  internal::ReadOp<R> Read(R& message) { return {stream_, message}; }
  internal::ReadOp<R> Read(R&& message) = delete;  // needs a named message to read into
};
template <class W, class R>
class ServerReaderWriter : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  internal::ReadOp<R> Read(R& message) { return {stream_, message}; }
  internal::ReadOp<R> Read(R&& message) = delete;  // needs a named message to read into
  internal::WriteOp Write(const W&) { return internal::WriteOp(stream_); }
};

// Server side, for methods marked blocking: each call blocks the worker thread.
template <class W>
class ServerWriterSync : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  bool Write(const W&) { return false; }
};
template <class R>
class ServerReaderSync : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  bool Read(R&) { return false; }
};
template <class W, class R>
class ServerReaderWriterSync : public internal::ServerStreamBase {
 public:
  using ServerStreamBase::ServerStreamBase;
  bool Read(R&) { return false; }
  bool Write(const W&) { return false; }
};

}  // namespace verbena
