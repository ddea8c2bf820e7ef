// Parcel's Fetch and FetchAll: what to READ to where, from a descriptor, a slice and a placement.
#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"
#include "rpc/base/limits.h"
#include "rpc/memory/copy_now.h"
#include "rpc/memory/device.h"
#include "rpc/reactor/operation.h"
#include "rpc/tensor/descriptor.h"
#include "rpc/tensor/fetch_local.h"
#include "rpc/tensor/fetch_operation.h"
#include "rpc/tensor/parcel_table.h"
#include "rpc/tensor/scatter.h"
#include "verbena/parcel.h"
#include "verbena/status.h"

namespace verbena::internal {
namespace {

absl::StatusOr<ParcelSlot> FindSlot(const ParcelBase& parcel, uint64_t ticket) {
  const uint64_t stamp = ParcelAccess::Stamp(parcel);
  const ParcelTable* table = ParcelAccess::Table(parcel);
  if (ticket == 0) {
    return absl::InvalidArgumentError("this descriptor has no tensor: nothing was attached to it");
  }
  const uint64_t slot = ticket & kSlotMask;
  if (stamp == 0 || (ticket & ~kSlotMask) != stamp) {
    return absl::InvalidArgumentError(
        "this descriptor belongs to another parcel: fetch it from the parcel it came with");
  }
  if (table == nullptr) return absl::FailedPreconditionError("the parcel's tensors were released");
  if (slot < 1 || slot > table->count()) {
    return absl::InvalidArgumentError(
        absl::StrCat("this descriptor names tensor ", slot, " of a parcel of ", table->count()));
  }
  return table->Get(slot);
}

uint64_t SlotBytes(const ParcelTable& table, const ParcelSlot& slot) {
  return slot.here ? slot.local.bytes() : table.payloads()->entries()[slot.entry].bytes;
}

absl::Status RowsAreOfOneTensor() {
  return absl::InvalidArgumentError("Placement::IntoRows is for the fetch of one tensor");
}

absl::Status OneDestination(const Placement& placement) {
  return absl::InvalidArgumentError(
      absl::StrCat(placement.destinations(), " destinations for the fetch of one tensor"));
}

absl::StatusOr<memory::Device*> WritableDevice(Device where) { return memory::FindDevice(where); }

struct Run {
  uint64_t offset;
  uint64_t bytes;
};

// The ranges to move one by one; empty when they are many and small, so that the enclosing range
// goes as one.
absl::StatusOr<std::vector<Run>> RunsOf(const Layout& layout) {
  std::vector<Run> runs;
  bool small = false;
  const bool all = layout.ForEachRun([&](uint64_t offset, uint64_t bytes) {
    small = bytes < limits::kGatherBelowBytes;  // all are as long
    runs.push_back({offset, bytes});
    return !small && runs.size() <= limits::kFetchReadsMax;
  });
  if (small) return std::vector<Run>();
  if (!all) {
    return absl::InvalidArgumentError(
        absl::StrCat("the slice consists of more than ", limits::kFetchReadsMax, " pieces"));
  }
  return runs;
}

Run Enclosing(const Layout& layout) {
  const absl::StatusOr<Reach> reach = ReachOf(layout.dtype(), layout.shape(), layout.strides());
  VERBENA_CHECK(reach.ok(), "a layout that was not checked");
  return {layout.byte_offset() + static_cast<uint64_t>(reach->begin),
          static_cast<uint64_t>(reach->end - reach->begin)};
}

// Many small rows: READ what encloses them, then pick.
absl::Status AddGatheredTransfer(FetchPlan& plan, uint32_t entry, const Layout& layout,
                                 Tensor& destination) {
  const Run range = Enclosing(layout);
  const Device where = destination.device();
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, WritableDevice(where));
  // The transfer, which the session checks, is in no stream's order; the copy after it is.
  VERBENA_RETURN_IF_ERROR(device->CheckOrder(plan.order));
  VERBENA_ASSIGN_OR_RETURN(Buffer enclosing, Buffer::Allocate(range.bytes, where));
  std::byte* const from = enclosing.mutable_data();
  std::byte* const to = destination.mutable_data();
  plan.AddTransfer(entry, range.offset, device, from, range.bytes, false);
  if (!(where == Device::Host())) {
    VERBENA_ASSIGN_OR_RETURN(std::vector<memory::CopyPiece> rows,
                             RowCopies(layout, from, range.offset, to));
    plan.copy = [enclosing, rows = std::move(rows), where, kept = destination.buffer()] {
      return memory::CopyNow(where, rows);
    };
    return absl::OkStatus();
  }
  plan.Keep(std::move(enclosing));
  plan.finish = [layout, from, range, to](absl::Status status) {
    if (status.ok()) Gather(layout, from, range.offset, to);
    return status;
  };
  return absl::OkStatus();
}

absl::Status AddTransfers(FetchPlan& plan, uint32_t entry, const Layout& layout,
                          Tensor& destination, bool lent) {
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, WritableDevice(destination.device()));
  std::byte* to = destination.mutable_data();
  if (layout.bytes() == 0) return absl::OkStatus();
  if (layout.contiguous()) {
    plan.AddTransfer(entry, layout.byte_offset(), device, to, layout.bytes(), lent);
    return absl::OkStatus();
  }
  VERBENA_ASSIGN_OR_RETURN(std::vector<Run> runs, RunsOf(layout));
  if (runs.empty()) return AddGatheredTransfer(plan, entry, layout, destination);
  for (const Run& run : runs) {
    plan.AddTransfer(entry, run.offset, device, to, run.bytes, lent);
    to += run.bytes;
  }
  return absl::OkStatus();
}

// Into rows of the caller's, with one READ for all of them where the transport can.
absl::Status AddScattered(FetchPlan& plan, uint32_t entry, const Layout& layout,
                          const Placement& placement) {
  if (!layout.contiguous()) return StridedIntoRows();
  VERBENA_ASSIGN_OR_RETURN(std::vector<FetchPlan::Piece> pieces, RowPieces(layout, placement));
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, WritableDevice(placement.device()));
  if (!pieces.empty()) plan.AddScattered(entry, layout.byte_offset(), device, pieces);
  return absl::OkStatus();
}

using TableRef = std::shared_ptr<ParcelTable>;

// Everything that is not here yet; what came is in the table when the operation has ended.
absl::Status AddAllTransfers(FetchPlan& plan, const TableRef& table, const Placement& placement) {
  VERBENA_ASSIGN_OR_RETURN(std::vector<Buffer> buffers, PlaceAll(*table->payloads(), placement));
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, WritableDevice(placement.device()));
  plan.Follow(placement);
  std::vector<std::pair<uint64_t, Buffer>> results;
  for (uint64_t i = 1; i <= table->count(); ++i) {
    const ParcelSlot slot = table->Get(i);
    if (slot.here) continue;
    Buffer& to = buffers[slot.entry];
    plan.AddTransfer(slot.entry, 0, device, to.mutable_data(), to.bytes(),
                     placement.destination(slot.entry) != nullptr);
    plan.Keep(to);
    results.emplace_back(i, std::move(to));
  }
  plan.finish = [table, results = std::move(results)](absl::Status status) mutable {
    if (!status.ok()) return status;
    for (auto& [slot, buffer] : results) table->Set(slot, std::move(buffer));
    table->payloads()->Release();
    return status;
  };
  return absl::OkStatus();
}

Call<Tensor> FetchTensor(const ParcelBase& parcel, const v1::Tensor& descriptor,
                         const TensorSlice* slice, const Placement& placement) {
  auto failed = [](absl::Status status) { return Call<Tensor>(EndedOperation(std::move(status))); };
  absl::StatusOr<ParcelSlot> slot = FindSlot(parcel, descriptor.ticket());
  if (!slot.ok()) return failed(slot.status());
  ParcelTable& table = *ParcelAccess::Table(parcel);
  absl::StatusOr<Layout> layout = LayoutOf(descriptor, SlotBytes(table, *slot));
  if (layout.ok() && slice != nullptr) layout = layout->Slice(*slice);
  if (!layout.ok()) return failed(layout.status());
  if (placement.destinations() > 1) return failed(OneDestination(placement));
  if (slot->here) {
    return Call<Tensor>(FetchLocal(slot->local, *layout, slice == nullptr, placement));
  }
  FetchOperation* operation = FetchOperation::New(table.payloads());
  const bool lent = placement.destination() != nullptr;
  operation->StartAfter([entry = slot->entry, layout = *layout, placement, lent](FetchPlan& plan) {
    plan.Follow(placement);
    if (placement.rows() != nullptr) {
      plan.tensor = *placement.destination();
      plan.KeepInStream(plan.tensor.buffer());
      return AddScattered(plan, entry, layout, placement);
    }
    VERBENA_ASSIGN_OR_RETURN(Tensor destination, DestinationOf(layout, placement));
    absl::Status added = AddTransfers(plan, entry, layout, destination, lent);
    plan.KeepInStream(destination.buffer());
    plan.tensor = std::move(destination);
    return added;
  });
  return Call<Tensor>(operation);
}

}  // namespace

Call<Tensor> ParcelBase::Fetch(const v1::Tensor& descriptor, const Placement& placement) const {
  return FetchTensor(*this, descriptor, nullptr, placement);
}

Call<Tensor> ParcelBase::Fetch(const v1::Tensor& descriptor, const TensorSlice& slice,
                               const Placement& placement) const {
  return FetchTensor(*this, descriptor, &slice, placement);
}

Call<Buffer> ParcelBase::Fetch(const v1::Buffer& descriptor, const Placement& placement) const {
  auto failed = [](absl::Status status) { return Call<Buffer>(EndedOperation(std::move(status))); };
  absl::StatusOr<ParcelSlot> slot = FindSlot(*this, descriptor.ticket());
  if (!slot.ok()) return failed(slot.status());
  const uint64_t bytes = SlotBytes(*table_, *slot);
  if (descriptor.bytes() != bytes) {
    return failed(absl::InvalidArgumentError(absl::StrCat(
        "the descriptor says ", descriptor.bytes(), " bytes, the payload has ", bytes)));
  }
  if (placement.rows() != nullptr) return failed(RowsAreOfOneTensor());
  if (placement.destinations() > 1) return failed(OneDestination(placement));
  const Tensor* into = placement.destination();
  if (into != nullptr && (into->bytes() != bytes || into->read_only() || !into->contiguous())) {
    return failed(absl::InvalidArgumentError(absl::StrCat("destination ", into->DebugString(),
                                                          " is not writable, contiguous memory of ",
                                                          bytes, " bytes")));
  }
  if (slot->here) return Call<Buffer>(FetchLocal(slot->local, placement));
  FetchOperation* operation = FetchOperation::New(table_->payloads());
  operation->StartAfter([entry = slot->entry, placement, bytes](FetchPlan& plan) -> absl::Status {
    const Tensor* lent = placement.destination();
    absl::StatusOr<Buffer> to = lent != nullptr ? lent->buffer().Slice(lent->byte_offset(), bytes)
                                                : Buffer::Allocate(bytes, placement.device());
    if (!to.ok()) return to.status();
    VERBENA_ASSIGN_OR_RETURN(memory::Device * device, WritableDevice(to->device()));
    plan.Follow(placement);
    plan.AddTransfer(entry, 0, device, to->mutable_data(), bytes, lent != nullptr);
    plan.KeepInStream(*to);
    plan.buffer = *std::move(to);
    return absl::OkStatus();
  });
  return Call<Buffer>(operation);
}

Call<void> ParcelBase::FetchAll(const Placement& placement) const {
  auto failed = [](absl::Status status) { return Call<void>(EndedOperation(std::move(status))); };
  if (table_ == nullptr || table_->payloads() == nullptr) return failed(absl::OkStatus());
  // Holds the table, not the parcel, which may be gone by then.
  table_->Ref();
  TableRef table(table_, [](ParcelTable* t) { t->Unref(); });
  FetchOperation* operation = FetchOperation::New(table_->payloads());
  operation->StartAfter([table = std::move(table), placement](FetchPlan& plan) {
    return AddAllTransfers(plan, table, placement);
  });
  return Call<void>(operation);
}

absl::StatusOr<std::vector<Buffer>> PlaceAll(const session::PayloadSet& payloads,
                                             const Placement& placement) {
  if (placement.rows() != nullptr) return RowsAreOfOneTensor();
  std::vector<Buffer> buffers;
  const absl::Span<const session::PayloadSet::Entry> entries = payloads.entries();
  for (size_t i = 0; i < entries.size(); ++i) {
    const Tensor* into = placement.destination(i);
    if (into == nullptr) {
      VERBENA_ASSIGN_OR_RETURN(Buffer made, Buffer::Allocate(entries[i].bytes, placement.device()));
      buffers.push_back(std::move(made));
      continue;
    }
    if (into->bytes() != entries[i].bytes || into->read_only() || !into->contiguous()) {
      return absl::InvalidArgumentError(absl::StrCat("destination ", i, ", ", into->DebugString(),
                                                     ", is not writable, contiguous memory of ",
                                                     entries[i].bytes, " bytes"));
    }
    VERBENA_ASSIGN_OR_RETURN(Buffer part, into->buffer().Slice(into->byte_offset(), into->bytes()));
    buffers.push_back(std::move(part));
  }
  return buffers;
}

}  // namespace verbena::internal
