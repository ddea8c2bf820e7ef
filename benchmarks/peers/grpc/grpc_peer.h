#pragma once
// The three gRPC APIs as workloads. Each keeps `outstanding` calls in flight until the window is
// over, then drains.
#include <grpcpp/grpcpp.h>

#include <memory>
#include <string>

#include "benchmark.grpc.pb.h"
#include "benchmarks/harness/workload.h"

namespace verbena::benchmarks {

namespace pb = ::verbena_benchmarks;

absl::StatusOr<std::unique_ptr<Service>> StartSyncService(const Params& params);
absl::StatusOr<std::unique_ptr<Service>> StartCallbackService(const Params& params);
absl::StatusOr<std::unique_ptr<Service>> StartQueueService(const Params& params);
absl::StatusOr<std::unique_ptr<Workload>> StartSyncWorkload(const Params& params);
absl::StatusOr<std::unique_ptr<Workload>> StartCallbackWorkload(const Params& params);
absl::StatusOr<std::unique_ptr<Workload>> StartQueueWorkload(const Params& params);

// What every variant shares.
struct ClientBasics {
  explicit ClientBasics(const Params& params);
  std::shared_ptr<grpc::Channel> channel;
  std::unique_ptr<pb::Benchmark::Stub> stub;
  bool put;  // Put instead of Echo
  uint64_t outstanding;
  pb::EchoMessage request;
};
// Waits until the channel is connected.
absl::Status Connect(const ClientBasics& basics);
absl::Status FromGrpc(const grpc::Status& status);
// Address to listen on, and limits off: messages are as large as the benchmark wants.
std::string ListenOn(grpc::ServerBuilder& builder, const Params& params, int* port);
std::string AddressOf(const Params& params, const std::string& listen, int port);

// A server of `Handlers`, whose calls the library's own threads run.
template <class Handlers>
class ServiceOf final : public Service {
 public:
  static absl::StatusOr<std::unique_ptr<Service>> Start(const Params& params) {
    std::unique_ptr<ServiceOf> service(new ServiceOf(params));
    if (service->server_ == nullptr) return absl::UnavailableError("gRPC did not start");
    return service;
  }
  std::string address() const override { return address_; }

 private:
  explicit ServiceOf(const Params& params) {
    grpc::ServerBuilder builder;
    int port = 0;
    const std::string listen = ListenOn(builder, params, &port);
    builder.RegisterService(&handlers_);
    server_ = builder.BuildAndStart();
    address_ = AddressOf(params, listen, port);
  }

  Handlers handlers_;
  std::unique_ptr<grpc::Server> server_;
  std::string address_;
};

// A workload whose channel is connected.
template <class W>
absl::StatusOr<std::unique_ptr<Workload>> ConnectedWorkload(const Params& params) {
  auto workload = std::make_unique<W>(params);
  if (absl::Status s = workload->Connected(); !s.ok()) return s;
  return workload;
}

}  // namespace verbena::benchmarks
