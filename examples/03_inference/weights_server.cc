// Serves the tensors of a .safetensors file.  weights_server FILE ADDRESS
#include <cstdio>
#include <utility>

#include "examples/03_inference/progress.h"
#include "examples/03_inference/truncation.h"
#include "examples/03_inference/weights_service.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

absl::Status Serve(const char* path, const char* address) {
  VERBENA_ASSIGN_OR_RETURN(safetensors::File file, safetensors::File::Open(path));
  const uint64_t bytes = file.data().size();
  const size_t count = file.tensors().size();
  WeightsService service(std::move(file));
  VERBENA_ASSIGN_OR_RETURN(auto server,
                           Server::Start(ServerOptions().set_listen(address).add_service(service)));
  std::printf("serving %zu tensor%s, %s, of %s on %s\n", count, count == 1 ? "" : "s",
              HumanBytes(bytes).c_str(), path, address);
  std::fflush(stdout);
  WaitForTermination();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fprintf(stderr, "usage: weights_server FILE.safetensors ADDRESS\n");
    return 2;
  }
  verbena::safetensors::truncation::ReportOnSigbus();
  absl::Status status = verbena::examples::Serve(argv[1], argv[2]);
  if (!status.ok()) std::fprintf(stderr, "weights_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
