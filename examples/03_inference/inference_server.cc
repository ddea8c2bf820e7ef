// Pulls a network from a weights server and runs it for others.
//   inference_server [--transport shm|verbs|tcp] WEIGHTS_ADDRESS ADDRESS
#include <cstdio>
#include <string>
#include <utility>

#include "examples/03_inference/classifier_service.h"
#include "examples/03_inference/progress.h"
#include "examples/common/command_line.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

absl::Status Serve(const CommandLine& line) {
  const std::string& weights = line.arguments[0];
  const std::string& address = line.arguments[1];
  inference::Weights::Stub stub(Channel::Create(weights, line.channel));
  VERBENA_ASSIGN_OR_RETURN(Pulled pulled, PullAll(stub));
  std::printf("pulled %zu tensors, %s, over %s; every SHA-256 agrees\n", pulled.tensors.size(),
              HumanBytes(pulled.bytes).c_str(), pulled.transport.c_str());
  VERBENA_ASSIGN_OR_RETURN(auto service, ClassifierService::Create(std::move(pulled.tensors)));
  VERBENA_ASSIGN_OR_RETURN(
      auto server, Server::Start(ServerOptions().set_listen(address).add_service(*service)));
  std::printf("serving inference.Classifier on %s\n", address.c_str());
  std::fflush(stdout);
  WaitForTermination();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  const auto line = verbena::examples::ReadCommandLine(
      argc, argv, 2, "inference_server [--transport shm|verbs|tcp] WEIGHTS_ADDRESS ADDRESS");
  if (!line) return 2;
  absl::Status status = verbena::examples::Serve(*line);
  if (!status.ok()) std::fprintf(stderr, "inference_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
