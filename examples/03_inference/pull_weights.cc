// Pulls all that a weights server has, verifies it, and says how fast it came.  pull_weights
// WEIGHTS_ADDRESS
#include <cstdio>

#include "examples/03_inference/progress.h"
#include "examples/03_inference/pull.h"

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: pull_weights WEIGHTS_ADDRESS\n");
    return 2;
  }
  absl::StatusOr<verbena::examples::Pulled> pulled =
      verbena::examples::PullAll(inference::Weights::Stub(verbena::Channel::Create(argv[1])));
  if (!pulled.ok()) {
    std::fprintf(stderr, "pull_weights: %s\n", pulled.status().ToString().c_str());
    return 1;
  }
  std::printf("pulled %zu tensors, %s, over %s at %s; every SHA-256 agrees\n",
              pulled->tensors.size(), verbena::examples::HumanBytes(pulled->bytes).c_str(),
              pulled->transport.c_str(),
              verbena::examples::HumanRate(pulled->bytes, pulled->read_time).c_str());
  return 0;
}
