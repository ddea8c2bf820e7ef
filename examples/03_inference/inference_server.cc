// Pulls a network from a weights server and runs it for others.  inference_server WEIGHTS_ADDRESS
// ADDRESS
#include <cstdio>
#include <utility>

#include "examples/03_inference/classifier_service.h"
#include "examples/03_inference/progress.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

absl::Status Serve(const char* weights, const char* address, Termination& termination) {
  VERBENA_ASSIGN_OR_RETURN(Pulled pulled,
                           PullAll(inference::Weights::Stub(Channel::Create(weights))));
  std::printf("pulled %zu tensors, %s, over %s; every SHA-256 agrees\n", pulled.tensors.size(),
              HumanBytes(pulled.bytes).c_str(), pulled.transport.c_str());
  VERBENA_ASSIGN_OR_RETURN(auto service, ClassifierService::Create(std::move(pulled.tensors)));
  VERBENA_ASSIGN_OR_RETURN(
      auto server, Server::Start(ServerOptions().set_listen(address).add_service(*service)));
  std::printf("serving inference.Classifier on %s\n", address);
  std::fflush(stdout);
  termination.Wait();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: inference_server WEIGHTS_ADDRESS ADDRESS\n");
    return 2;
  }
  verbena::examples::Termination termination;
  absl::Status status = verbena::examples::Serve(argv[1], argv[2], termination);
  if (!status.ok()) std::fprintf(stderr, "inference_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
