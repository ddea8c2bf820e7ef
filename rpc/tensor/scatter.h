#pragma once
// Placement::IntoRows: where the bytes of a tensor go when its rows become rows of another.
#include <vector>

#include "absl/status/statusor.h"
#include "rpc/tensor/fetch_operation.h"
#include "rpc/tensor/layout.h"
#include "verbena/placement.h"

namespace verbena::internal {

// The places of a tensor's packed bytes, one after the other, in the rows of the placement's
// destination that it names; rows that lie side by side are one. INVALID_ARGUMENT: the destination
// does not take such rows; OUT_OF_RANGE names a row that it has not.
absl::StatusOr<std::vector<FetchPlan::Piece>> RowPieces(const Layout& layout,
                                                        const Placement& placement);

}  // namespace verbena::internal
