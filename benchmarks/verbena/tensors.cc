// Tensors pulled whole into memory of the client's own, alone and beside small calls on the same
// channel.
#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

pb::TensorRequest RequestOf(uint64_t bytes, bool user_memory) {
  pb::TensorRequest request;
  request.set_bytes(bytes);
  request.set_user_memory(user_memory);
  return request;
}

absl::StatusOr<Tensor> Destination(uint64_t bytes) {
  return Tensor::Empty(kUInt8, Shape(static_cast<int64_t>(bytes)));
}

// The whole operation: call, fetch into the same destination, release.
class TensorPull final : public Workload {
 public:
  TensorPull(std::shared_ptr<Channel> channel, const pb::TensorRequest& request, Tensor into)
      : stub_(std::move(channel)), request_(request), into_(std::move(into)) {}
  absl::Status Run(Window& window) override {
    while (!window.Over()) {
      const uint64_t start = Ticks();
      auto reply = stub_.GetTensor(request_).Get();
      if (!reply.ok()) return reply.status();
      auto tensor = reply->Fetch((*reply)->tensor(), Placement::Into(into_)).Get();
      if (!tensor.ok()) return tensor.status();
      window.AddLatency(Ticks() - start);
      window.AddBytes(tensor->bytes());
    }
    return absl::OkStatus();
  }

 private:
  pb::TensorBenchmark::Stub stub_;
  pb::TensorRequest request_;
  Tensor into_;
};

class EchoBesideBulk final : public Workload {
 public:
  EchoBesideBulk(std::shared_ptr<Channel> channel, const Params& params, Tensor into)
      : echo_(channel),
        tensors_(channel),
        bulk_(RequestOf(params.payload_bytes(), false)),
        into_(std::move(into)) {
    small_.set_payload(std::string(params.Number("echo_bytes", 32), 'x'));
  }
  absl::Status Run(Window& window) override {
    fetching_ = true;
    auto [echo, bulk] =
        verbena::Run(WhenAll(EchoUntilOver(echo_, small_, window, &fetching_), Fetch(window)));
    return echo.ok() ? bulk : echo;
  }
  double warm_up_seconds() const override { return 0.001; }  // it fetches one whole tensor anyway

 private:
  Task<absl::Status> Fetch(Window& window) {
    absl::Status status = co_await FetchUntilOver(tensors_, bulk_, into_, window);
    fetching_ = false;
    co_return status;
  }
  pb::Benchmark::Stub echo_;
  pb::TensorBenchmark::Stub tensors_;
  pb::EchoMessage small_;
  pb::TensorRequest bulk_;
  Tensor into_;
  bool fetching_ = false;  // the last tensor may take longer than the window
};

}  // namespace

Task<absl::Status> FetchUntilOver(pb::TensorBenchmark::Stub stub, const pb::TensorRequest& request,
                                  Tensor into, Window& window) {
  const Placement placement = Placement::Into(into);
  while (!window.Over()) {
    auto call = stub.GetTensor(request);
    auto reply = co_await call;
    if (!reply.ok()) co_return reply.status();
    auto fetch = reply->Fetch((*reply)->tensor(), placement);
    auto tensor = co_await fetch;
    if (!tensor.ok()) co_return tensor.status();
    window.AddBytes(tensor->bytes());
  }
  co_return absl::OkStatus();
}

WorkloadPtr StartTensor(const Params& params, bool user_memory) {
  auto into = Destination(params.payload_bytes());
  if (!into.ok()) return into.status();
  auto channel = Connect(params);
  if (!channel.ok()) return channel.status();
  return std::make_unique<TensorPull>(
      *std::move(channel), RequestOf(params.payload_bytes(), user_memory), *std::move(into));
}

WorkloadPtr StartEchoBesideBulk(const Params& params) {
  auto into = Destination(params.payload_bytes());
  if (!into.ok()) return into.status();
  auto channel = Connect(params);
  if (!channel.ok()) return channel.status();
  return std::make_unique<EchoBesideBulk>(*std::move(channel), params, *std::move(into));
}

}  // namespace verbena::benchmarks
