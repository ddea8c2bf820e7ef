// Pulls all that a weights server has, verifies it, and says how fast it came.
//   pull_weights [--transport shm|verbs|tcp] WEIGHTS_ADDRESS
#include <cstdio>

#include "examples/03_inference/progress.h"
#include "examples/03_inference/pull.h"
#include "examples/common/command_line.h"

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 1, "pull_weights [--transport shm|verbs|tcp] WEIGHTS_ADDRESS");
  if (!line) return 2;
  inference::Weights::Stub stub(verbena::Channel::Create(line->arguments[0], line->channel));
  absl::StatusOr<verbena::examples::Pulled> pulled = verbena::examples::PullAll(stub);
  if (!pulled.ok()) {
    std::fprintf(stderr, "pull_weights: %s\n", pulled.status().ToString().c_str());
    return 1;
  }
  std::printf("pulled %zu tensor%s, %s, over %s; every SHA-256 agrees\n", pulled->tensors.size(),
              pulled->tensors.size() == 1 ? "" : "s",
              verbena::examples::HumanBytes(pulled->bytes).c_str(), pulled->transport.c_str());
  // Where the time went that the bar shows: the last is this program's, not the library's.
  std::printf("READs: %s; %.2f s to make the memory, %.2f s to verify it\n",
              verbena::examples::HumanRate(pulled->bytes, pulled->read_time).c_str(),
              absl::ToDoubleSeconds(pulled->memory_time),
              absl::ToDoubleSeconds(pulled->digest_time));
  return 0;
}
