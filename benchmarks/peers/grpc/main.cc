// gRPC as a peer: sync, callback and completion-queue API, over a unix socket or TCP.
#include "benchmarks/peers/grpc/grpc_peer.h"

namespace verbena::benchmarks {
namespace {

absl::StatusOr<std::unique_ptr<Service>> StartService(const Params& params) {
  const std::string api = params.Text("api");
  if (api == "sync") return StartSyncService(params);
  if (api == "callback") return StartCallbackService(params);
  if (api == "cq") return StartQueueService(params);
  return absl::InvalidArgumentError("api: want sync, callback or cq, got " + api);
}

absl::StatusOr<std::unique_ptr<Workload>> StartWorkload(const Params& params) {
  const std::string api = params.Text("api");
  if (api == "sync") return StartSyncWorkload(params);
  if (api == "callback") return StartCallbackWorkload(params);
  if (api == "cq") return StartQueueWorkload(params);
  return absl::InvalidArgumentError("api: want sync, callback or cq, got " + api);
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  return verbena::benchmarks::ParticipantMain(argc, argv, verbena::benchmarks::StartService,
                                              verbena::benchmarks::StartWorkload);
}
