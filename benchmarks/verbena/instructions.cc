// `bench_verbena_instructions N`: a server and a client in one process, N echoes of 32 bytes; run
// by benchmarks/instructions, which subtracts two runs. Both sides' instructions are in the count.
#include <cstdio>
#include <cstdlib>

#include "benchmarks/verbena/verbena_peer.h"

int main(int argc, char** argv) {
  namespace bench = verbena::benchmarks;
  const long calls = argc > 1 ? std::atol(argv[1]) : 1000;
  auto service = bench::StartVerbenaService(bench::Params());
  if (!service.ok()) {
    std::fprintf(stderr, "%s\n", service.status().ToString().c_str());
    return 1;
  }
  const bench::pb::Benchmark::Stub stub(verbena::Channel::Create((*service)->address()));
  bench::pb::EchoMessage request;
  request.set_payload(std::string(32, 'x'));
  bench::pb::EchoMessage reply;
  for (long i = 0; i < calls; ++i) {
    const absl::Status status = stub.Echo(request).GetInto(reply);
    if (status.ok()) continue;
    std::fprintf(stderr, "call %ld: %s\n", i, status.ToString().c_str());
    return 1;
  }
  return 0;
}
