#pragma once
// GPUs as devices of this process: after UseGpus, Device::Cuda(n) can be allocated on, wrapped,
// sent from and fetched into. A program that never calls it, or runs where no GPU is, is not
// changed by it.
//
// Which memory is whose: what cudaMalloc, cudaMallocAsync and the virtual-memory API give is
// Device::Cuda(n)'s; what cudaHostAlloc gives is the host's, and GPUs copy from and to it at the
// full rate. What cudaMallocManaged gives can be wrapped as either, and wanders between them: it is
// given to no process and kept registered with no NIC, and as a GPU's it goes by way of page-locked
// stages.
//
//   if (absl::Status s = verbena::UseGpus(); !s.ok()) ...  // says why there are none here
//   auto reply = co_await request.Fetch(request->input(), verbena::Device::Cuda(0));
#include "absl/status/status.h"
#include "absl/types/span.h"

namespace verbena {

// Makes GPUs known by their CUDA numbers, once for the process's life; without numbers, all that
// it sees. The driver (libcuda) is loaded by the first call. No context is made until a GPU is
// used, and never on one that was not named. A GPU that is known already is no error. Once one is
// used, the library's host memory is page-locked, so that copies to and from GPUs run at the full
// rate. The first allocation on a GPU, or fetch to it, waits for what runs there, as the driver
// loads a kernel of the library's then: no stream may stand still until that is over. UNAVAILABLE:
// no driver, or no GPU here; NOT_FOUND: no GPU of that number (those before it are known then);
// FAILED_PRECONDITION: a driver that cannot be used: older than CUDA 11.4's (470), the toolkit's
// stub, or one that does not load. That the driver did not load, or showed no GPU, is final for the
// process: later calls say the same. Any thread but a reactor's; may block for a second.
absl::Status UseGpus(absl::Span<const int> numbers = {});

}  // namespace verbena
