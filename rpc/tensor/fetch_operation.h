#pragma once
// internal::FetchOperation: one Fetch or FetchAll in flight: a number of transfers out of one
// payload set, then perhaps a gather of what they brought. Holds the destinations until no byte can
// arrive any more, also when the user's Call is gone. While the growth thread makes room for them,
// it is held in the payload set, so that it ends as soon as that cannot be fetched any more.
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/functional/any_invocable.h"
#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "rpc/reactor/operation.h"
#include "rpc/session/session.h"
#include "verbena/buffer.h"
#include "verbena/placement.h"
#include "verbena/tensor.h"

namespace verbena::internal {

// What a fetch will do, and the memory for it. Belongs to no thread until an operation takes it.
class FetchPlan {
 public:
  // [offset, offset + bytes) of payload `entry` into memory of `device` at `to`, which lies in
  // something that the plan keeps.
  void AddTransfer(uint32_t entry, uint64_t offset, memory::Device* device, std::byte* to,
                   size_t bytes, bool lent) {
    const Piece all{to, bytes};
    Add(entry, offset, device, {&all, 1}, lent);
  }
  struct Piece {
    std::byte* to;
    size_t bytes;
  };
  // The same into several places, one after the other, which are the caller's.
  void AddScattered(uint32_t entry, uint64_t offset, memory::Device* device,
                    absl::Span<const Piece> pieces) {
    Add(entry, offset, device, pieces, true);
  }
  // The placement's stream and path are those of all transfers.
  void Follow(const Placement& placement) {
    order.stream = placement.stream();
    require_path = placement.required_path();
  }
  void Keep(Buffer destination) { kept.push_back(std::move(destination)); }
  // A fetch that ends when its copies stand in a stream has given its result away before they are
  // over.
  void KeepInStream(const Buffer& destination) {
    if (order.stream != nullptr) Keep(destination);
  }

  struct Part {
    uint32_t entry = 0;
    uint64_t offset = 0;
    memory::Device* device = nullptr;
    absl::InlinedVector<Piece, 1> pieces;
    bool lent = false;
  };
  std::vector<Part> transfers;
  std::vector<Buffer> kept;
  memory::StreamOrder order;  // of all transfers, like what follows
  Path require_path = Path::kNone;
  bool local = false;  // the bytes are here
  Tensor tensor;
  Buffer buffer;
  // Moves bytes once the transfers have brought them, which then are in no stream's order: on the
  // copies' thread, after what is queued on the stream. Holds all memory that it names.
  absl::AnyInvocable<absl::Status() const> copy;
  // Runs once no transfer is left, in the seat, before the operation ends; its result is the
  // operation's. No user code.
  using Finish = absl::AnyInvocable<absl::Status(absl::Status) &&>;
  Finish finish;

 private:
  void Add(uint32_t entry, uint64_t offset, memory::Device* device, absl::Span<const Piece> pieces,
           bool lent) {
    // In place: g++ 12 takes the move of an empty InlinedVector for a use of what is not there.
    Part& part = transfers.emplace_back();
    part.entry = entry;
    part.offset = offset;
    part.device = device;
    part.pieces.assign(pieces.begin(), pieces.end());
    part.lent = lent;
  }
};

class FetchOperation final : public Operation {
 public:
  // Two references: the caller's and the flight's, which Start gives up in the end.
  static FetchOperation* New(session::PayloadSetRef payloads);

  FetchPlan& plan() { return plan_; }
  // As the plan's, after it, and also when there was none.
  void set_finish(FetchPlan::Finish finish) { finish_ = std::move(finish); }

  // Any thread. Enters the seat if it is free, else goes by the inbox.
  void Start();
  // Any thread. `prepare` finds memory and makes the plan; then as Start, or the operation ends
  // with its error. Where that would make memory, which takes a second per GiB, it runs once more
  // on the growth thread. The operation ends without waiting for it when it is cancelled, or the
  // payloads' owner dies: so `prepare` names nothing but what it holds.
  template <typename Prepare>
  void StartAfter(Prepare prepare) {
    if (!PrepareNow(prepare)) StartGrowing(std::move(prepare));
  }
  using PrepareLater = absl::AnyInvocable<absl::Status(FetchPlan&) const>;
  // Any thread. `copy` moves bytes of this process's own, and leaves the result in the plan; it may
  // block. Runs on the copies' thread once `awaited` are ready, and ends as with StartAfter.
  void StartCopying(PrepareLater copy, std::vector<memory::ReadinessRef> awaited);

  absl::Status TakeTensor(Tensor& tensor) override;
  absl::Status TakeBuffer(Buffer& buffer) override;

 private:
  class Transfer final : public session::Fetch {
   public:
    explicit Transfer(FetchOperation* owner) : owner_(owner) {}
    void OnOrdered(const absl::Status& status) override {
      ordered = true;
      owner_->report_.path = path;
      owner_->OnTransferOrdered(status);
    }
    void OnDone(const absl::Status& status) override {
      running = false;
      if (ordered) --owner_->ordered_;
      if (status.ok() && !ordered) owner_->report_.path = path;  // else the user may be reading it
      owner_->OnTransferDone(status);
    }
    bool running = false;
    bool ordered = false;

   private:
    FetchOperation* owner_;
  };
  // Stands for the transfers while there is no memory for them.
  class Held final : public session::Fetch {
   public:
    explicit Held(FetchOperation* owner) : owner_(owner) {}
    void OnDone(const absl::Status& status) override { owner_->OnHeldDone(status); }
    bool running = false;

   private:
    FetchOperation* owner_;
  };
  struct StartWork : reactor::Work {
    explicit StartWork(FetchOperation* o)
        : Work(
              [](reactor::Work* work) { static_cast<StartWork*>(work)->operation->StartInSeat(); }),
          operation(o) {}
    FetchOperation* operation;
  };

  struct PreparedWork : reactor::Work {
    explicit PreparedWork(FetchOperation* o)
        : Work([](reactor::Work* work) {
            static_cast<PreparedWork*>(work)->operation->OnPrepared();
          }),
          operation(o) {}
    FetchOperation* operation;
  };

  // False: that needs memory that the pools do not have yet.
  bool PrepareNow(absl::FunctionRef<absl::Status(FetchPlan&)> prepare);
  void StartGrowing(PrepareLater prepare);
  struct Preparation;
  // Starts, and waits for the end of what another thread is to do.
  std::shared_ptr<Preparation> Preparing(PrepareLater prepare);
  static void CopyWhenReady(const std::shared_ptr<Preparation>& copying);
  FetchOperation() : held_(this), start_work_(this), prepared_work_(this) {}
  ~FetchOperation() override = default;
  void StartInSeat();
  void Launch();
  void OnPrepared();
  void OnHeldDone(const absl::Status& status);
  void AbandonPreparation();
  void OnTransferDone(const absl::Status& status);
  void OnTransferOrdered(const absl::Status& status);
  // Ends for its user once all that is left stands in the stream, unless there is more to do then;
  // what it holds stays held.
  void MaybeEndEarly();
  // Once no transfer is left.
  void End();
  void StartPlannedCopy();
  // Once, before it ends for its user.
  absl::Status RunFinish(absl::Status status);
  void Fail(const absl::Status& why);
  void OnCancel(const absl::Status& why) override;
  void Recycle() override { delete this; }

  session::PayloadSetRef payloads_;
  FetchPlan plan_;
  absl::Status prepared_;  // what `prepare` said
  // Until the memory is there, or the copy made; holds a reference.
  std::shared_ptr<Preparation> preparation_;
  Held held_;
  std::vector<Transfer> transfers_;  // whose addresses the session has: never grows
  FetchPlan::Finish finish_;
  size_t running_ = 0;
  size_t ordered_ = 0;        // of those
  bool ended_early_ = false;  // for its user
  bool ended_well_ = false;
  bool started_ = false;
  absl::Status first_error_;
  StartWork start_work_;
  PreparedWork prepared_work_;
};

// A destination for each payload: the caller's, or new memory on the placement's device. Errors as
// Fetch.
absl::StatusOr<std::vector<Buffer>> PlaceAll(const session::PayloadSet& payloads,
                                             const Placement& placement);

}  // namespace verbena::internal
