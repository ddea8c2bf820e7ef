#pragma once
// Descriptors on the wire (verbena.v1.Tensor) and the layouts they mean.
#include <cstdint>

#include "absl/status/statusor.h"
#include "rpc/tensor/layout.h"
#include "verbena/tensor.h"
#include "verbena/v1/tensor.pb.h"

namespace verbena::internal {

// The bytes that a tensor's elements span: for a strided one from its lowest to its highest
// element.
struct ByteSpan {
  uint64_t offset = 0;  // in its buffer
  uint64_t bytes = 0;
};
ByteSpan SpanOf(const Tensor& tensor);

// Writes type, shape and strides; the ticket is the caller's.
void Describe(const Tensor& tensor, v1::Tensor& descriptor);

// Where the elements lie in a payload of `payload_bytes`. INVALID_ARGUMENT, OUT_OF_RANGE: the
// descriptor makes no sense with that payload (it came from a peer, or a user changed it).
absl::StatusOr<Layout> LayoutOf(const v1::Tensor& descriptor, uint64_t payload_bytes);

}  // namespace verbena::internal
