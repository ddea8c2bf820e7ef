#include "rpc/tensor/fetch_operation.h"

#include "rpc/base/fork.h"
#include "rpc/memory/pool.h"
#include "rpc/reactor/reactors.h"
#include "rpc/reactor/service_threads.h"
#include "rpc/session/engine.h"

namespace verbena::internal {

FetchOperation* FetchOperation::New(session::PayloadSetRef payloads) {
  auto* operation = new FetchOperation;
  operation->Restart(payloads != nullptr ? session::Link::EngineOf(*payloads).reactor()
                                         : reactor::DefaultReactor());
  operation->payloads_ = std::move(payloads);
  return operation;
}

void FetchOperation::AddTransfer(uint32_t entry, uint64_t offset, memory::Device* device,
                                 std::byte* to, size_t bytes, bool lent) {
  Transfer& transfer = transfers_.emplace_back(this);
  transfer.entry = entry;
  transfer.offset = offset;
  transfer.pieces.push_back({device, to, bytes});
  transfer.destination_lent = lent;
}

void FetchOperation::Start() {
  reactor::Reactor& home = reactor();
  if (home.InSeat() && !Forked()) {
    StartInSeat();
  } else {
    home.PostSeat(start_work_);
  }
}

void FetchOperation::StartAfter(Prepare prepare, uint64_t bytes, Device device) {
  const bool holds_up = reactor().InSeat() || reactor::Reactor::Current() != nullptr;
  const bool at_once =
      !holds_up || bytes == 0 || (device == Device::Host() && memory::TryAllocateBlock(bytes));
  if (at_once) {
    prepared_ = std::move(prepare)(*this);
    Start();
    return;
  }
  reactor::PostSetup([this, prepare = std::move(prepare)]() mutable {
    prepared_ = std::exchange(prepare, nullptr)(*this);
    Start();
  });
}

void FetchOperation::StartInSeat() {
  started_ = true;
  if (first_error_.ok()) first_error_ = std::move(prepared_);
  if (payloads_ != nullptr) report_.transport = payloads_->transport();
  running_ = 1;  // the operation must not end while this loop runs
  for (Transfer& transfer : transfers_) {
    if (!first_error_.ok()) break;
    ++running_;
    transfer.running = true;
    session::Link::StartFetch(*payloads_, transfer);
  }
  OnTransferDone(absl::OkStatus());
}

void FetchOperation::OnTransferDone(const absl::Status& status) {
  if (!status.ok() && first_error_.ok()) {
    first_error_ = status;
    OnCancel(status);  // the others are of no use
  }
  if (--running_ != 0) return;
  if (finish_) first_error_ = std::exchange(finish_, nullptr)(std::move(first_error_));
  kept_.clear();
  payloads_.reset();
  Complete(std::move(first_error_));
}

void FetchOperation::OnCancel(const absl::Status& why) {
  if (first_error_.ok()) first_error_ = why;
  if (!started_) return;  // the start is still in the inbox, and will find nothing to wait for
  for (Transfer& transfer : transfers_) {
    if (transfer.running) session::Link::CancelFetch(transfer);
  }
}

absl::Status FetchOperation::TakeTensor(Tensor& tensor) {
  tensor = std::move(tensor_);
  return absl::OkStatus();
}

absl::Status FetchOperation::TakeBuffer(Buffer& buffer) {
  buffer = std::move(buffer_);
  return absl::OkStatus();
}

}  // namespace verbena::internal
