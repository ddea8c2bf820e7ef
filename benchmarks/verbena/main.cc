// Verbena as a participant.
#include "absl/strings/str_cat.h"
#include "benchmarks/verbena/verbena_peer.h"
#include "rpc/base/slowdown.h"

namespace verbena::benchmarks {
namespace {

// perftest polls for ever. Where CPUs are emulated, the library's usual spin is over before an
// answer can be there, which waits for one or two milliseconds behind a READ, and sleeping would be
// measured.
void SpinLongEnough(const Params& params) {
  if (params.transport() != "verbs" || MachineSlowdown() == 1) return;
  InitRuntime(RuntimeOptions().set_spin(absl::Milliseconds(10))).IgnoreError();
}

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params& params) {
  SpinLongEnough(params);
  return StartVerbenaService(params);
}

WorkloadPtr StartWorkload(const Params& params) {
  SpinLongEnough(params);
  const std::string workload = params.workload();
  if (workload == "echo") return StartEcho(params);
  if (workload == "echo_coroutine") return StartEchoCoroutine(params);
  if (workload == "echo_many") return StartEchoMany(params);
  if (workload == "put") return StartPut(params);
  if (workload == "tensor") return StartTensor(params, false);
  if (workload == "tensor_user") return StartTensor(params, true);
  if (workload == "echo_beside_bulk") return StartEchoBesideBulk(params);
  if (workload == "idle_connections") return StartIdleConnections(params);
  if (workload == "fairness") return StartFairness(params);
  return absl::InvalidArgumentError(absl::StrCat("no Verbena workload called ", workload));
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
