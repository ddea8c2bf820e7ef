#pragma once
// internal::FetchOperation: one Fetch or FetchAll in flight: a number of transfers out of one
// payload set, then perhaps a gather of what they brought. Holds the destinations until no byte can
// arrive any more, also when the user's Call is gone.
#include <cstdint>
#include <deque>
#include <utility>
#include <vector>

#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "rpc/reactor/operation.h"
#include "rpc/session/session.h"
#include "verbena/buffer.h"
#include "verbena/placement.h"
#include "verbena/tensor.h"

namespace verbena::internal {

class FetchOperation final : public Operation {
 public:
  // Two references: the caller's and the flight's, which Start or Fail gives up.
  static FetchOperation* New(session::PayloadSetRef payloads);

  // [offset, offset + bytes) of payload `entry` into memory of `device` at `to`, which lies in
  // something that Keep holds.
  void AddTransfer(uint32_t entry, uint64_t offset, memory::Device* device, std::byte* to,
                   size_t bytes, bool lent);
  void Keep(Buffer destination) { kept_.push_back(std::move(destination)); }
  void set_tensor(Tensor tensor) { tensor_ = std::move(tensor); }
  void set_buffer(Buffer buffer) { buffer_ = std::move(buffer); }
  // Runs once no transfer is left, in the seat, before the operation ends; its result is the
  // operation's. No user code.
  using Finish = absl::AnyInvocable<absl::Status(absl::Status) &&>;
  void set_finish(Finish finish) { finish_ = std::move(finish); }

  // Any thread. Enters the seat if it is free, else goes by the inbox.
  void Start();
  // Any thread. `prepare` finds memory and adds the transfers; then as Start, or the operation ends
  // with its error. It runs here, or on the setup thread when that might hold up a reactor: making
  // `bytes` of memory on `device` takes tenths of a second for large ones.
  using Prepare = absl::AnyInvocable<absl::Status(FetchOperation&) &&>;
  void StartAfter(Prepare prepare, uint64_t bytes, Device device);

  absl::Status TakeTensor(Tensor& tensor) override;
  absl::Status TakeBuffer(Buffer& buffer) override;

 private:
  class Transfer final : public session::Fetch {
   public:
    explicit Transfer(FetchOperation* owner) : owner_(owner) {}
    void OnDone(const absl::Status& status) override {
      running = false;
      owner_->OnTransferDone(status);
    }
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

  FetchOperation() : start_work_(this) {}
  ~FetchOperation() override = default;
  void StartInSeat();
  void OnTransferDone(const absl::Status& status);
  void OnCancel(const absl::Status& why) override;
  void Recycle() override { delete this; }

  session::PayloadSetRef payloads_;
  std::deque<Transfer> transfers_;
  std::vector<Buffer> kept_;
  Tensor tensor_;
  Buffer buffer_;
  Finish finish_;
  size_t running_ = 0;
  bool started_ = false;
  absl::Status first_error_;
  absl::Status prepared_;  // what `prepare` said; until the start, only it may touch the transfers
  StartWork start_work_;
};

// A destination for each payload: the caller's, or new memory on the placement's device. Errors as
// Fetch.
absl::StatusOr<std::vector<Buffer>> PlaceAll(const session::PayloadSet& payloads,
                                             const Placement& placement);

}  // namespace verbena::internal
