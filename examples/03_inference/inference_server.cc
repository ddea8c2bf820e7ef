// Pulls a network from a weights server and runs it for others: on a GPU where there is one, else
// on the host. With NEXT it runs the first layer, on the first GPU, and has the inference server
// there, on the last GPU, go on.
//   inference_server [--transport shm|verbs|tcp] WEIGHTS_ADDRESS ADDRESS [NEXT_ADDRESS]
#include <cstdio>
#include <memory>
#include <string>
#include <utility>

#include "examples/03_inference/classifier_service.h"
#include "examples/03_inference/kernels.h"
#include "examples/03_inference/progress.h"
#include "examples/common/command_line.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

// Null: there is none, or it is not to be used.
absl::StatusOr<std::shared_ptr<const Gpu>> FindGpu(bool first) {
  const absl::StatusOr<int> gpus = UseAllGpus();
  if (!gpus.ok() && GpuRequired()) return gpus.status();
  if (!gpus.ok()) {
    std::printf("on the host: %s\n", std::string(gpus.status().message()).c_str());
    return std::shared_ptr<const Gpu>();
  }
  VERBENA_ASSIGN_OR_RETURN(std::shared_ptr<const Gpu> gpu,
                           Gpu::Open(first ? 0 : *gpus - 1, kKernels));
  std::printf("on cuda:%d, %s\n", gpu->device().index(), gpu->name().c_str());
  return gpu;
}

absl::Status Serve(const CommandLine& line) {
  const std::string& weights = line.arguments[0];
  const std::string& address = line.arguments[1];
  std::shared_ptr<Channel> next;
  if (line.arguments.size() == 3) next = Channel::Create(line.arguments[2], line.channel);
  VERBENA_ASSIGN_OR_RETURN(const auto gpu, FindGpu(next != nullptr));
  inference::Weights::Stub stub(Channel::Create(weights, line.channel));
  VERBENA_ASSIGN_OR_RETURN(Pulled pulled, PullAll(stub, gpu.get()));
  std::printf("pulled %zu tensors, %s, over %s; every SHA-256 agrees\n", pulled.tensors.size(),
              HumanBytes(pulled.bytes).c_str(), pulled.transport.c_str());
  VERBENA_ASSIGN_OR_RETURN(auto service,
                           ClassifierService::Create(std::move(pulled.tensors), gpu, next));
  VERBENA_ASSIGN_OR_RETURN(
      auto server, Server::Start(ServerOptions().set_listen(address).add_service(*service)));
  std::printf("serving inference.Classifier on %s%s%s\n", address.c_str(),
              next == nullptr ? "" : ": the first layer; the others at ",
              next == nullptr ? "" : line.arguments[2].c_str());
  std::fflush(stdout);
  WaitForTermination();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 2,
      "inference_server [--transport shm|verbs|tcp] WEIGHTS_ADDRESS ADDRESS [NEXT_ADDRESS]", 1);
  if (!line) return 2;
  absl::Status status = verbena::examples::Serve(*line);
  if (!status.ok()) std::fprintf(stderr, "inference_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
