#pragma once
// Tensors in and out of other frameworks by DLPack, without copying. Both forms: DLManagedTensor
// (torch 1.x, older libraries) and DLManagedTensorVersioned (DLPack 1.0 and later). Bring your own
// <dlpack/dlpack.h>, or the framework's: only the structs' names are needed here, and their layout
// is frozen.
//
//   VERBENA_ASSIGN_OR_RETURN(verbena::Tensor t, verbena::FromDlpack(at::toDLPack(torch_tensor)));
//   VERBENA_ASSIGN_OR_RETURN(DLManagedTensor* out, verbena::ToDlpackUnversioned(t));
//   torch_tensor = at::fromDLPack(out);
#include "absl/status/statusor.h"
#include "verbena/tensor.h"

struct DLManagedTensor;
struct DLManagedTensorVersioned;

namespace verbena {

// A tensor over `managed`'s memory. On OK it owns `managed`: the deleter runs once, when the last
// copy is gone (on the disposal thread if that happens on a reactor). On an error nothing was taken
// and `managed` stays the caller's. Device types CPU, CUDA and CUDAHost (which becomes host
// memory). No copy, no synchronisation: work that still writes the memory must have finished. Any
// thread.
//  - INVALID_ARGUMENT: what a tensor cannot be (rank, negative dimension, no data, an overflow).
//  - UNIMPLEMENTED: another device type, a major version above 1, padded elements below a byte.
absl::StatusOr<Tensor> FromDlpack(DLManagedTensor* managed);
// The same; memory that is flagged read-only gives a read-only tensor.
absl::StatusOr<Tensor> FromDlpack(DLManagedTensorVersioned* managed);

// A new managed tensor that shares `tensor`'s memory until its deleter is called, which the caller
// or whoever it is handed to must do once, on any thread. Strides are always set. INVALID_ARGUMENT:
// no tensor; UNIMPLEMENTED: a device that DLPack has no word for.
absl::StatusOr<DLManagedTensorVersioned*> ToDlpack(const Tensor& tensor);
// For consumers that know the older form only. FAILED_PRECONDITION: the tensor is read-only, which
// that form cannot say.
absl::StatusOr<DLManagedTensor*> ToDlpackUnversioned(const Tensor& tensor);

}  // namespace verbena
