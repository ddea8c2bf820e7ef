#include "rpc/tensor/scatter.h"

#include <cstdint>

#include "absl/strings/str_cat.h"
#include "rpc/base/check.h"

namespace verbena::internal {
namespace {

absl::Status NoMatch(const Tensor& table, const Layout& layout, const std::vector<int64_t>& rows) {
  return absl::InvalidArgumentError(absl::StrCat(
      rows.size(), " rows of ", table.DebugString(), " do not match a tensor of shape ",
      layout.shape().DebugString(), " and dtype ", layout.dtype().DebugString()));
}

absl::Status CheckTable(const Tensor& table, const Layout& layout,
                        const std::vector<int64_t>& rows) {
  const Shape& fetched = layout.shape();
  bool same = table.dtype() == layout.dtype() && table.shape().rank() == fetched.rank() &&
              fetched.rank() > 0 && static_cast<uint64_t>(fetched[0]) == rows.size();
  for (size_t d = 1; same && d < fetched.rank(); ++d) same = table.shape()[d] == fetched[d];
  if (!same) return NoMatch(table, layout, rows);
  if (table.read_only() || !table.contiguous()) {
    return absl::InvalidArgumentError(
        absl::StrCat("destination ", table.DebugString(), " is ",
                     table.read_only() ? "read-only memory" : "not contiguous"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<FetchPlan::Piece>> RowPieces(const Layout& layout,
                                                        const Placement& placement) {
  VERBENA_CHECK(placement.rows() != nullptr && placement.destination() != nullptr);
  Tensor table = *placement.destination();  // shares the memory
  const std::vector<int64_t>& rows = *placement.rows();
  if (absl::Status s = CheckTable(table, layout, rows); !s.ok()) return s;
  std::vector<FetchPlan::Piece> pieces;
  if (layout.bytes() == 0) return pieces;
  const int64_t of_row = layout.shape().elements() / layout.shape()[0];
  if (of_row * layout.dtype().bits() % 8 != 0) {
    return absl::InvalidArgumentError(
        absl::StrCat("rows of ", table.DebugString(), " are not whole bytes"));
  }
  const size_t row_bytes = layout.bytes() / rows.size();
  for (const int64_t row : rows) {
    if (row < 0 || row >= table.shape()[0]) {
      return absl::OutOfRangeError(
          absl::StrCat("row ", row, " of destination ", table.DebugString()));
    }
    std::byte* const to = table.mutable_data() + static_cast<size_t>(row) * row_bytes;
    if (!pieces.empty() && pieces.back().to + pieces.back().bytes == to) {
      pieces.back().bytes += row_bytes;
    } else {
      pieces.push_back({to, row_bytes});
    }
  }
  return pieces;
}

}  // namespace verbena::internal
