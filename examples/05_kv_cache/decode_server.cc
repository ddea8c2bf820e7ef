// Pulls keys and values from a prefill server into pages of the second GPU, or of the only one, or
// of the host.
//   decode_server [--transport shm|verbs|tcp] PREFILL_ADDRESS ADDRESS LAYERS BLOCK_KIB PAGES
#include <cstdio>

#include "examples/05_kv_cache/decode_service.h"
#include "examples/05_kv_cache/geometry.h"
#include "examples/common/command_line.h"
#include "examples/common/termination.h"

namespace verbena::examples {
namespace {

absl::Status Serve(const CommandLine& line, const Geometry& geometry) {
  VERBENA_ASSIGN_OR_RETURN(const Place place, Place::Find(1));
  VERBENA_ASSIGN_OR_RETURN(const auto pages, Pages::Create(place.device, geometry.layers,
                                                           geometry.pages, geometry.block_bytes));
  DecodeService service(place, *pages, Channel::Create(line.arguments[0], line.channel));
  const std::string& address = line.arguments[1];
  VERBENA_ASSIGN_OR_RETURN(const auto server,
                           Server::Start(ServerOptions().set_listen(address).add_service(service)));
  std::printf("serving kv.Decode on %s, pages in %s\n", address.c_str(), place.description.c_str());
  std::fflush(stdout);
  WaitForTermination();
  return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::examples

int main(int argc, char** argv) {
  constexpr char kUsage[] =
      "decode_server [--transport shm|verbs|tcp] PREFILL_ADDRESS ADDRESS LAYERS BLOCK_KIB PAGES";
  const auto line = verbena::examples::ReadCommandLine(argc, argv, 5, kUsage);
  if (!line) return 2;
  const auto geometry =
      verbena::examples::ReadGeometry(line->arguments[2], line->arguments[3], line->arguments[4]);
  if (!geometry) {
    std::fprintf(stderr, "usage: %s\n", kUsage);
    return 2;
  }
  const absl::Status status = verbena::examples::Serve(*line, *geometry);
  if (!status.ok()) std::fprintf(stderr, "decode_server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
