#pragma once
// Asks an inference server what digits it sees, one image per call, and counts how often it is
// right.
#include <cstddef>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/time/time.h"
#include "examples/03_inference/digits.h"
#include "inference.verbena.h"
#include "verbena/verbena.h"

namespace verbena::examples {

struct Classification {
  // The answer for each image, in their order.
  std::vector<int> answers;
  size_t right = 0;
  // One per call, ascending.
  std::vector<absl::Duration> latencies;
  std::string transport;
};

// Classifies digits [begin, digits.count()). Blocks; not on a reactor thread.
// Errors: what the calls end with; INVALID_ARGUMENT when the server's network does not tell ten
// digits.
absl::StatusOr<Classification> Classify(const inference::Classifier::Stub& stub,
                                        const Digits& digits, size_t begin);

// The image in characters, for people.
std::string Drawing(absl::Span<const float> image);

}  // namespace verbena::examples
