#pragma once
// Fetches of what is in this process already: attached to the parcel itself, or come with FetchAll.
#include <vector>

#include "rpc/memory/device.h"
#include "rpc/tensor/fetch_operation.h"
#include "rpc/tensor/layout.h"
#include "verbena/buffer.h"
#include "verbena/placement.h"

namespace verbena::internal {

// `layout` of `local` to where `placement` says: the same memory, where it is wanted whole
// (`whole`) and where it is; else a copy. Within the host that is made at once; one that a device
// has to make comes after what writes `local` (Buffer::After) and after what is queued on the
// placement's stream, on the copies' thread. Ends with errors as Fetch; FAILED_PRECONDITION:
// another path than "local" is required.
FetchOperation* FetchLocal(const Buffer& local, const Layout& layout, bool whole,
                           const Placement& placement);
// All of it.
FetchOperation* FetchLocal(const Buffer& local, const Placement& placement);

// What is not made.
absl::Status StridedIntoRows();
// The packed destination of a tensor: the caller's or new. INVALID_ARGUMENT: the caller's does not
// match, is read-only or is not contiguous; else as Tensor::Empty.
absl::StatusOr<Tensor> DestinationOf(const Layout& layout, const Placement& placement);
// Packs the tensor's bytes, which begin `from_offset` bytes into the payload at `from`, by the CPU.
void Gather(const Layout& layout, const std::byte* from, uint64_t from_offset, std::byte* to);
// The same as copies for a device to make, row by row. INVALID_ARGUMENT: more than kDeviceRowsMax.
absl::StatusOr<std::vector<memory::CopyPiece>> RowCopies(const Layout& layout,
                                                         const std::byte* from,
                                                         uint64_t from_offset, std::byte* to);

}  // namespace verbena::internal
