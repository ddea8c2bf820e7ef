#pragma once
// Pulls every tensor of a weights server by READ, shows how far it is, and verifies what arrived.
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/common/gpu.h"
#include "inference.verbena.h"
#include "verbena/verbena.h"

namespace verbena::examples {

// Tensors are pulled in pieces of about this size, so that the bar moves. Larger pieces make it
// jump, smaller ones cost a round of bookkeeping per piece that shows in the rate.
inline constexpr uint64_t kPieceBytes = uint64_t{64} << 20;
// Of one tensor and of all: what a server may make its client allocate.
inline constexpr uint64_t kPulledBytesMax = uint64_t{64} << 30;

struct PulledTensor {
  std::string name;
  Tensor tensor;
};

struct Pulled {
  std::string file;
  std::vector<PulledTensor> tensors;
  uint64_t bytes = 0;
  // What was spent in allocating, in READs, and in computing digests.
  absl::Duration memory_time, read_time, digest_time;
  std::string transport;
};

// Blocks until all is here and its digests agree: in memory of `gpu`, or of the host where that is
// null. Not on a reactor thread.
// Errors: DATA_LOSS naming the tensor and both digests; INVALID_ARGUMENT when the server's list and
// its tensors disagree; RESOURCE_EXHAUSTED above kPulledBytesMax; else what the calls end with.
absl::StatusOr<Pulled> PullAll(const inference::Weights::Stub& stub, const Gpu* gpu = nullptr);

}  // namespace verbena::examples
