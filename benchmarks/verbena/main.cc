// Verbena as a participant.
#include "absl/strings/str_cat.h"
#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

WorkloadPtr StartWorkload(const Params& params) {
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
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartVerbenaService,
                                              verbena::benchmarks::StartWorkload);
}
