// Computes keys and values of prompts on the first GPU, or on the host, and leases them.
//   prefill_server ADDRESS LAYERS BLOCK_KIB PAGES [flaw]
#include <cstdio>
#include <cstring>

#include "examples/05_kv_cache/geometry.h"
#include "examples/05_kv_cache/prefill_service.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

absl::Status Serve(const char* address, const Geometry& geometry, const PrefillOptions& options) {
  VERBENA_ASSIGN_OR_RETURN(const Place place, Place::Find(0));
  VERBENA_ASSIGN_OR_RETURN(const auto pages, Pages::Create(place.device, geometry.layers,
                                                           geometry.pages, geometry.block_bytes));
  PrefillService service(place, *pages, options);
  // As many workers as a sequence has layers: on the host each waits for its own.
  VERBENA_ASSIGN_OR_RETURN(
      const auto server,
      Server::Start(
          ServerOptions().set_listen(address).set_worker_threads(64).add_service(service)));
  std::printf("serving kv.Prefill on %s, pages in %s\n", address, place.description.c_str());
  std::fflush(stdout);
  WaitForTermination();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  using verbena::examples::ReadGeometry;
  verbena::examples::PrefillOptions options;
  options.flaw = argc == 6 && std::strcmp(argv[5], "flaw") == 0;
  const auto geometry =
      argc == (options.flaw ? 6 : 5) ? ReadGeometry(argv[2], argv[3], argv[4]) : std::nullopt;
  if (!geometry) {
    std::fprintf(stderr, "usage: prefill_server ADDRESS LAYERS BLOCK_KIB PAGES [flaw]\n");
    return 2;
  }
  const absl::Status status = verbena::examples::Serve(argv[1], *geometry, options);
  if (!status.ok()) std::fprintf(stderr, "prefill_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
