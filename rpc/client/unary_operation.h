#pragma once
// internal::UnaryOperation: one unary call at the client, from the stub's return to the last
// reference. Comes from a free list of its thread with the room for small requests and replies
// inside: such a call allocates nothing.
//
// Invariant: the request's bytes and tensors stay until ReleaseKept or Recycle, hence until no peer
// can read them: the session reports OnReply only then.
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <stop_token>
#include <utility>
#include <vector>

#include "rpc/memory/region.h"
#include "rpc/reactor/operation.h"
#include "rpc/session/session.h"
#include "rpc/tensor/message_reader.h"
#include "rpc/tensor/message_writer.h"
#include "verbena/options.h"

namespace verbena::internal {

class ChannelCore;
class FetchOperation;
struct OperationPool;

class UnaryOperation final : public Operation, public session::ClientCall {
 public:
  // Two references, the user's and the flight's. Any thread.
  static UnaryOperation* New(ChannelCore& channel);

  // The stages, in this order. Any thread, before it is started.
  MessageWriter& writer() { return writer_; }
  // INVALID_ARGUMENT, RESOURCE_EXHAUSTED: metadata that breaks the rules.
  absl::Status SetOptions(const CallOptions& options) {
    wait_for_ready_ = options.wait_for_ready();
    return options.rare() == nullptr ? absl::OkStatus() : SetRare(*options.rare());
  }
  bool wait_for_ready() const { return wait_for_ready_; }
  // Instead of starting it: nobody has seen it.
  void Discard() { Recycle(); }

  // ---- in the seat
  // Why it must not start any more, if so.
  const absl::Status& early_cancel() const { return early_cancel_; }
  void GiveTo(session::Link& link, absl::string_view transport);
  // It ends without having reached a link.
  void Fail(absl::Status status) { Finish(std::move(status)); }
  void OnReply(session::ReplyView& reply) override;

  MessageReader* reader() override { return &reader_; }
  void ReleaseKept() override;

  reactor::Work& start_work() { return start_work_; }
  // The channel's list of calls without a connection; free, the thread's.
  UnaryOperation* next_waiting = nullptr;
  UnaryOperation** previous_waiting = nullptr;  // what points to it there
  bool waiting = false;

 private:
  friend struct OperationPool;
  static constexpr size_t kInlineReplyBytes = 512;

  struct StartWork : reactor::Work {
    explicit StartWork(UnaryOperation* o);
    UnaryOperation* operation;
  };
  struct StopFunction {
    UnaryOperation* operation;
    void operator()() const {
      operation->Cancel(absl::StatusCode::kCancelled, "cancelled by its stop token");
    }
  };
  struct Rare {
    std::vector<Metadata::Pair> metadata;
    std::vector<std::pair<absl::string_view, absl::string_view>> metadata_view;
    std::optional<Placement> placement;
    Operation* placing = nullptr;  // the fetch of the reply's tensors
    std::optional<std::stop_callback<StopFunction>> stop;
  };

  UnaryOperation() : start_work_(this) {}
  ~UnaryOperation() override = default;
  void OnCancel(const absl::Status& why) override;
  void Recycle() override;
  absl::Status SetRare(const CallOptions::Rare& rare);
  void Finish(absl::Status status);
  // One that is more than a small body.
  void OnRareReply(session::ReplyView& reply);
  void KeepBody(session::ReplyView& reply);
  void RecycleExtras();
  // The lent destinations are filled before the call ends. False: there is nothing to place.
  bool PlaceReply();
  // `buffers` are those of an OK status; else the growth thread may still be at them.
  void OnPlaced(const absl::Status& status, std::vector<Buffer>* buffers);

  ChannelCore* channel_ = nullptr;
  session::Link* link_given_ = nullptr;
  bool started_ = false;  // the channel has seen it
  bool extras_ = false;   // Recycle has more to free than a small call's
  bool wait_for_ready_ = false;
  absl::Status early_cancel_;
  MessageWriter writer_;
  MessageReader reader_;
  std::array<std::byte, kInlineReplyBytes> small_reply_;
  memory::Block reply_block_;
  std::unique_ptr<std::byte[]> reply_heap_;  // where the pool had no room
  std::unique_ptr<Rare> rare_;
  StartWork start_work_;
};

}  // namespace verbena::internal
