#include "rpc/tensor/fetch_local.h"

#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "rpc/base/limits.h"
#include "rpc/memory/copy_now.h"
#include "rpc/memory/device.h"
#include "rpc/tensor/buffer_memory.h"
#include "rpc/tensor/scatter.h"
#include "verbena/status.h"

namespace verbena::internal {
namespace {

bool IsHost(Device device) { return device == Device::Host(); }

absl::Status CheckPath(const Placement& placement) {
  const Path required = placement.required_path();
  if (required == Path::kNone || required == Path::kLocal) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat("these bytes are in this process already, and ",
                                                    PathName(required), " is required"));
}

// What has to end before bytes of `local` may be copied to where `placement` says.
absl::StatusOr<std::vector<memory::ReadinessRef>> AwaitedOf(const Buffer& local,
                                                            const Placement& placement) {
  std::vector<memory::ReadinessRef> awaited;
  const memory::ReadinessRef& after = BufferAccess::after(local);
  if (after != nullptr && !after->ready()) awaited.push_back(after);
  if (placement.stream() == nullptr || IsHost(placement.device())) return awaited;
  VERBENA_ASSIGN_OR_RETURN(memory::Device * device, memory::FindDevice(placement.device()));
  VERBENA_RETURN_IF_ERROR(device->CheckOrder({placement.stream()}));
  VERBENA_ASSIGN_OR_RETURN(memory::ReadinessRef queued, device->Record({placement.stream()}));
  if (!queued->ready()) awaited.push_back(std::move(queued));
  return awaited;
}

// `copy` leaves its result in the plan. By the CPU it is made at once.
FetchOperation* StartCopy(const Buffer& local, const Placement& placement,
                          FetchOperation::PrepareLater copy) {
  FetchOperation* const operation = FetchOperation::New(nullptr);
  if (IsHost(local.device()) && IsHost(placement.device())) {
    operation->StartAfter(std::move(copy));
    return operation;
  }
  absl::StatusOr<std::vector<memory::ReadinessRef>> awaited = AwaitedOf(local, placement);
  if (!awaited.ok()) copy = [status = awaited.status()](FetchPlan&) { return status; };
  operation->StartCopying(std::move(copy),
                          awaited.ok() ? *std::move(awaited) : std::vector<memory::ReadinessRef>());
  return operation;
}

// A strided tensor to `to`, packed. Between the host and a device the host's CPU picks the rows.
absl::Status CopyStrided(const Buffer& local, const Layout& layout, Device where, std::byte* to) {
  if (IsHost(local.device()) && IsHost(where)) {
    Gather(layout, local.data(), 0, to);
    return absl::OkStatus();
  }
  if (IsHost(local.device())) {
    VERBENA_ASSIGN_OR_RETURN(Buffer packed, Buffer::Allocate(layout.bytes()));
    Gather(layout, local.data(), 0, packed.mutable_data());
    const memory::CopyPiece all{to, packed.data(), layout.bytes()};
    return memory::CopyNow(where, {&all, 1});
  }
  if (IsHost(where)) {
    VERBENA_ASSIGN_OR_RETURN(Buffer whole, Buffer::Allocate(local.bytes()));
    const memory::CopyPiece all{whole.mutable_data(), local.data(), local.bytes()};
    VERBENA_RETURN_IF_ERROR(memory::CopyNow(local.device(), {&all, 1}));
    Gather(layout, whole.data(), 0, to);
    return absl::OkStatus();
  }
  VERBENA_ASSIGN_OR_RETURN(const std::vector<memory::CopyPiece> rows,
                           RowCopies(layout, local.data(), 0, to));
  return memory::CopyNow(where, rows);
}

// The packed bytes of `layout` to `pieces`, one after the other, in memory of `to`.
absl::Status Copy(const Buffer& local, const Layout& layout, Device to,
                  absl::Span<const FetchPlan::Piece> pieces) {
  if (layout.bytes() == 0) return absl::OkStatus();
  const std::byte* from = local.data() + layout.byte_offset();
  std::vector<memory::CopyPiece> copies;
  for (const FetchPlan::Piece& piece : pieces) {
    copies.push_back({piece.to, from, piece.bytes});
    from += piece.bytes;
  }
  return memory::CopyNow(IsHost(to) ? local.device() : to, copies);
}

FetchOperation* Ended(absl::Status status, Tensor tensor) {
  FetchOperation* const operation = FetchOperation::New(nullptr);
  operation->StartAfter([&](FetchPlan& plan) {
    plan.local = true;
    plan.tensor = std::move(tensor);
    return status;
  });
  return operation;
}

}  // namespace

void Gather(const Layout& layout, const std::byte* from, uint64_t from_offset, std::byte* to) {
  layout.ForEachRun([&](uint64_t offset, uint64_t bytes) {
    std::memcpy(to, from + (offset - from_offset), bytes);
    to += bytes;
    return true;
  });
}

absl::StatusOr<std::vector<memory::CopyPiece>> RowCopies(const Layout& layout,
                                                         const std::byte* from,
                                                         uint64_t from_offset, std::byte* to) {
  std::vector<memory::CopyPiece> copies;
  const bool all = layout.ForEachRun([&](uint64_t offset, uint64_t bytes) {
    copies.push_back({to, from + (offset - from_offset), bytes});
    to += bytes;
    return copies.size() <= limits::kDeviceRowsMax;
  });
  if (all && copies.size() <= limits::kDeviceRowsMax) return copies;
  return absl::InvalidArgumentError(
      absl::StrCat("the slice consists of more than ", limits::kDeviceRowsMax,
                   " rows for a device to pick out: fetch it into host memory, or whole"));
}

absl::Status StridedIntoRows() {
  return absl::UnimplementedError("a strided tensor cannot be fetched into rows of another");
}

absl::StatusOr<Tensor> DestinationOf(const Layout& layout, const Placement& placement) {
  const Tensor* into = placement.destination();
  if (into == nullptr) return Tensor::Empty(layout.dtype(), layout.shape(), placement.device());
  if (!(into->dtype() == layout.dtype()) || !(into->shape() == layout.shape())) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination ", into->DebugString(), " does not match a tensor of shape ",
                     layout.shape().DebugString(), " and dtype ", layout.dtype().DebugString()));
  }
  if (into->read_only()) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination ", into->DebugString(), " is read-only memory"));
  }
  if (!into->contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination ", into->DebugString(), " is not contiguous"));
  }
  return *into;
}

FetchOperation* FetchLocal(const Buffer& local, const Layout& layout, bool whole,
                           const Placement& placement) {
  if (absl::Status s = CheckPath(placement); !s.ok() && layout.bytes() != 0) return Ended(s, {});
  const bool stays = placement.destination() == nullptr && placement.device() == local.device();
  if (whole && stays && layout.bytes() != 0) {
    absl::StatusOr<Tensor> same =
        Tensor::Wrap(local, layout.dtype(), layout.shape(), layout.strides(), layout.byte_offset());
    return same.ok() ? Ended(absl::OkStatus(), *std::move(same)) : Ended(same.status(), {});
  }
  return StartCopy(local, placement, [=](FetchPlan& plan) -> absl::Status {
    plan.local = true;
    if (placement.rows() != nullptr) {
      if (!layout.contiguous()) return StridedIntoRows();
      VERBENA_ASSIGN_OR_RETURN(std::vector<FetchPlan::Piece> rows, RowPieces(layout, placement));
      plan.tensor = *placement.destination();
      return Copy(local, layout, placement.device(), rows);
    }
    VERBENA_ASSIGN_OR_RETURN(plan.tensor, DestinationOf(layout, placement));
    const FetchPlan::Piece all{plan.tensor.mutable_data(), layout.bytes()};
    return layout.contiguous() || layout.bytes() == 0
               ? Copy(local, layout, plan.tensor.device(), {&all, 1})
               : CopyStrided(local, layout, plan.tensor.device(), all.to);
  });
}

FetchOperation* FetchLocal(const Buffer& local, const Placement& placement) {
  const Tensor* const into = placement.destination();
  if (absl::Status s = CheckPath(placement); !s.ok() && local.bytes() != 0) return Ended(s, {});
  const bool stays = into == nullptr && placement.device() == local.device();
  return StartCopy(stays ? Buffer() : local, placement, [=](FetchPlan& plan) -> absl::Status {
    plan.local = true;
    plan.buffer = local;
    if (stays) return absl::OkStatus();
    if (into != nullptr) {
      VERBENA_ASSIGN_OR_RETURN(plan.buffer,
                               placement.destination()->buffer().Slice(
                                   placement.destination()->byte_offset(), local.bytes()));
    } else {
      VERBENA_ASSIGN_OR_RETURN(plan.buffer, Buffer::Allocate(local.bytes(), placement.device()));
    }
    if (local.bytes() == 0) return absl::OkStatus();
    const memory::CopyPiece all{plan.buffer.mutable_data(), local.data(), local.bytes()};
    return memory::CopyNow(IsHost(plan.buffer.device()) ? local.device() : plan.buffer.device(),
                           {&all, 1});
  });
}

}  // namespace verbena::internal
