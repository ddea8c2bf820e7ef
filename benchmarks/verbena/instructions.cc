// `bench_verbena_instructions N`: a server and a client in one process, N echoes of 32 bytes; run
// by benchmarks/instructions, which subtracts two runs. Both sides' instructions are in the count.
#include <cstdio>
#include <cstdlib>

#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

// On the reactor that serves too: one thread, so that nothing is counted but what the call takes.
Task<absl::Status> EchoMany(pb::Benchmark::Stub stub, long calls) {
  pb::EchoMessage request;
  request.set_payload(std::string(32, 'x'));
  pb::EchoMessage reply;
  for (long i = 0; i < calls; ++i) {
    auto call = stub.Echo(request);
    absl::Status status = co_await call.Into(reply);
    if (!status.ok()) co_return status;
  }
  co_return absl::OkStatus();
}

}  // namespace
}  // namespace verbena::benchmarks

int main(int argc, char** argv) {
  namespace bench = verbena::benchmarks;
  const long calls = argc > 1 ? std::atol(argv[1]) : 1000;
  auto service = bench::StartVerbenaService(bench::Params());
  if (!service.ok()) {
    std::fprintf(stderr, "%s\n", service.status().ToString().c_str());
    return 1;
  }
  const bench::pb::Benchmark::Stub stub(verbena::Channel::Create((*service)->address()));
  const absl::Status status = verbena::Run(bench::EchoMany(stub, calls));
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
