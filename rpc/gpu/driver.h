#pragma once
// gpu::Driver: libcuda as a table of functions, found at run time, so that one binary runs with and
// without GPUs. Tests put a driver of their own behind the same table.
//
//   absl::StatusOr<const gpu::Driver*> driver = gpu::LoadDriver();
//   if (!driver.ok()) ...   // says why there are no GPUs here
//
// All calls may block for the driver's locks; those that make or free something, for milliseconds.
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "rpc/gpu/driver_abi.h"

namespace verbena::gpu {

struct Driver {
#define VERBENA_MEMBER(name, parameters) abi::Result(*name) parameters = nullptr;
  VERBENA_DRIVER_FUNCTIONS(VERBENA_MEMBER)
  VERBENA_DRIVER_FUNCTIONS_MAYBE(VERBENA_MEMBER)
#undef VERBENA_MEMBER
};

// The process's driver, loaded and initialised by the first call; never unloaded. UNAVAILABLE: no
// libcuda here, or no GPU that it can use; FAILED_PRECONDITION: one that is too old, or does not
// work. Makes no context. Any thread; the first call blocks for about a second.
absl::StatusOr<const Driver*> LoadDriver();

// The same for the library `file`: what LoadDriver does once.
absl::StatusOr<Driver> LoadDriverFrom(const char* file);

// What the driver's answer means, as "WHAT: NAME, its text". OK for success.
//   RESOURCE_EXHAUSTED   the GPU (or the host) has no memory left
//   PERMISSION_DENIED    the system forbids it: IPC is off here
//   FAILED_PRECONDITION  a stream is being captured into a graph
//   UNIMPLEMENTED        this GPU, or this pair of GPUs, cannot do it
//   DATA_LOSS            the GPU found an error that it cannot correct (ECC, NVLink): what this
//                        context holds is lost; restart the process
//   ABORTED              work of this context faulted (an illegal address, a failed launch): no
//                        call in it succeeds any more; restart the process
//   INTERNAL             anything else
absl::Status StatusOf(const Driver& driver, abi::Result result, absl::string_view what);

// Whether it was refused for a graph that is being captured: nothing is said of the work that was
// asked about.
bool IsOfCapture(abi::Result result);

// Whether the error stays: each later call in the context fails with it.
bool IsSticky(abi::Result result);

}  // namespace verbena::gpu
