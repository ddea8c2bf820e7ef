// `bench_verbena_instructions N [BYTES [TRANSPORT]]`: a server and a client in one process, N
// echoes of 32 bytes, or (BYTES not 0) N tensors of BYTES that are fetched; run by
// benchmarks/instructions, which subtracts two runs. Both sides' instructions are in the count.
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

Task<absl::Status> FetchMany(pb::TensorBenchmark::Stub stub, Tensor into, long calls) {
  pb::TensorRequest request;
  request.set_bytes(into.bytes());
  const Placement placement = Placement::Into(into);
  for (long i = 0; i < calls; ++i) {
    auto call = stub.GetTensor(request);
    auto reply = co_await call;
    if (!reply.ok()) co_return reply.status();
    auto fetch = reply->Fetch((*reply)->tensor(), placement);
    auto tensor = co_await fetch;
    if (!tensor.ok()) co_return tensor.status();
  }
  co_return absl::OkStatus();
}

absl::Status RunCalls(const std::shared_ptr<Channel>& channel, long calls, int64_t tensor_bytes) {
  if (tensor_bytes == 0) return verbena::Run(EchoMany(pb::Benchmark::Stub(channel), calls));
  absl::StatusOr<Tensor> into = Tensor::Empty(kUInt8, Shape(tensor_bytes));
  if (!into.ok()) return into.status();
  return verbena::Run(FetchMany(pb::TensorBenchmark::Stub(channel), *std::move(into), calls));
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
  verbena::ChannelOptions options;
  if (argc > 3) options.set_require_transport(argv[3]);
  auto channel = verbena::Channel::Create((*service)->address(), options);
  const absl::Status status = bench::RunCalls(channel, calls, argc > 2 ? std::atol(argv[2]) : 0);
  if (status.ok()) return 0;
  std::fprintf(stderr, "%s\n", status.ToString().c_str());
  return 1;
}
