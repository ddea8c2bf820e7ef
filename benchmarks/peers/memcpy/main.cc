// memcpy as a peer: one thread, huge pages to huge pages, the same two blocks again and again, as a
// tensor is fetched again and again. It has no server: that process only waits.
#include <cstring>

#include "benchmarks/harness/huge_memory.h"
#include "benchmarks/harness/workload.h"

namespace verbena::benchmarks {
namespace {

class Copy final : public Workload {
 public:
  explicit Copy(size_t bytes) : from_(bytes), to_(bytes) {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      std::memcpy(to_.data(), from_.data(), from_.bytes());
      asm volatile("" : : "r"(to_.data()) : "memory");  // the copy must not be optimised away
      window.AddLatency(Ticks() - start);
      window.AddBytes(from_.bytes());
    }
    return absl::OkStatus();
  }

 private:
  HugeMemory from_;
  HugeMemory to_;
};

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params&) {
  return std::make_unique<AddressOnly>("");
}

absl::StatusOr<std::unique_ptr<Workload>> StartWorkload(const Params& params) {
  return std::make_unique<Copy>(params.payload_bytes());
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
