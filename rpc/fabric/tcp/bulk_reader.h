#pragma once
// tcp::BulkReader: the reader's end of a bulk lane. Requests go out in batches; answers are
// received straight into their destinations, one system call taking the rest of a chunk and what
// introduces the next. What is for memory that the CPU may not touch is received into stages, which
// its device empties; while none is free, nothing is received. Reactor thread only.
#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "rpc/fabric/fabric.h"
#include "rpc/fabric/stages.h"
#include "rpc/fabric/tcp/bulk_wire.h"

namespace verbena::fabric::tcp {

class BulkReader {
 public:
  struct PostedRead {
    ReadSlot slot;
    RemoteKey key;
    uint64_t offset = 0;
    uint32_t bytes = 0;
    absl::InlinedVector<LocalPiece, 2> pieces;
    memory::Device* device = nullptr;  // set: its memory is out of the CPU's reach
    uint32_t stage = Stages::kNone;    // then, once its bytes come
    std::shared_ptr<Stages> stages;    // then
  };

  // A READ has ended, or (with a stage, and kOk) its bytes wait to be copied; the stage is given
  // back by whoever does.
  using Ended = absl::FunctionRef<void(PostedRead& read, Error error)>;

  // `discard` takes bytes that nobody wants; of kDiscardBytes, and nothing lies in it.
  static constexpr size_t kDiscardBytes = 64 * 1024;
  explicit BulkReader(std::byte* discard) : discard_(discard) {}
  ~BulkReader();
  BulkReader(const BulkReader&) = delete;
  BulkReader& operator=(const BulkReader&) = delete;

  void Open(int fd) { fd_ = fd; }
  int fd() const { return fd_; }

  void Post(PostedRead read) { reads_.push_back(std::move(read)); }
  // Sends requests that wait. Sets `moved` if a byte went. UNAVAILABLE: the lane is gone.
  absl::Status Flush(bool& moved);
  // Receives at most `budget` bytes, and takes them off it. UNAVAILABLE: the lane is gone; other
  // errors: the peer broke the protocol.
  absl::Status Receive(Ended ended, size_t& budget, bool& moved);
  // READs that were not asked for yet can be.
  bool unasked() const {
    return out_sent_ < out_bytes_ || (asked_ < reads_.size() && asked_ < kRequestsMax);
  }
  // Requests wait for the socket.
  bool blocked() const { return blocked_; }
  // It has been idle: what it does not need is given up.
  void Rest();
  // Ends every READ that has not; nothing more is received.
  void FailAll(Ended ended, Error error);

 private:
  struct Gather;
  // False: there is no stage for what comes next.
  bool HasStage();
  void GatherInto(Gather& gather, size_t budget);
  void Advance(size_t bytes);
  absl::Status TakeScratch(Ended ended, bool& more);
  void Finish(Ended ended, Error error);

  std::byte* const discard_;
  int fd_ = -1;
  std::deque<PostedRead> reads_;  // the first `asked_` of them were requested
  uint32_t asked_ = 0;
  uint32_t ask_sequence_ = 0;
  uint32_t answer_sequence_ = 0;
  bool blocked_ = false;
  std::shared_ptr<Stages> stages_;  // once memory of a device was read into

  std::array<std::byte, kRequestsMax * kRequestBytes> out_;
  size_t out_bytes_ = 0;
  size_t out_sent_ = 0;

  // The answer at hand. The scratch takes the trailer of one chunk and the answer of the next, so
  // that both come with the data before them.
  bool in_data_ = false;       // an answer said OK; its data and trailer are due
  Error broken_ = Error::kOk;  // the destination cannot be written; the rest is discarded
  size_t data_at_ = 0;
  std::array<std::byte, kTrailerBytes + kAnswerBytes> scratch_;
  size_t scratch_bytes_ = kTrailerBytes;  // before the first answer there is no trailer
};

}  // namespace verbena::fabric::tcp
