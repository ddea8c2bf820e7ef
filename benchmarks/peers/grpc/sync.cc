// gRPC's blocking API: one client thread per outstanding call.
#include <thread>
#include <vector>

#include "benchmarks/peers/grpc/grpc_peer.h"

namespace verbena::benchmarks {
namespace {

class Handlers final : public pb::Benchmark::Service {
  grpc::Status Echo(grpc::ServerContext*, const pb::EchoMessage* request,
                    pb::EchoMessage* reply) override {
    reply->set_payload(request->payload());
    return grpc::Status::OK;
  }
  grpc::Status Put(grpc::ServerContext*, const pb::EchoMessage* request,
                   pb::PutReply* reply) override {
    reply->set_bytes(request->payload().size());
    return grpc::Status::OK;
  }
};

class SyncWorkload final : public Workload {
 public:
  explicit SyncWorkload(const Params& params) : basics_(params) {}
  absl::Status Connected() const { return Connect(basics_); }

  absl::Status Run(Window& window) override {
    if (basics_.outstanding == 1) return Loop(window);
    std::vector<Window> windows(basics_.outstanding, Window(window.seconds()));
    std::vector<absl::Status> statuses(basics_.outstanding);
    std::vector<std::thread> threads;
    for (size_t i = 0; i < basics_.outstanding; ++i) {
      threads.emplace_back([this, &windows, &statuses, i] { statuses[i] = Loop(windows[i]); });
    }
    for (std::thread& t : threads) t.join();
    for (const Window& w : windows) window.AddOperations(w.operations());
    for (const absl::Status& s : statuses) {
      if (!s.ok()) return s;
    }
    return absl::OkStatus();
  }

 private:
  absl::Status Loop(Window& window) {
    pb::EchoMessage reply;
    pb::PutReply put_reply;
    while (!window.Over()) {
      const uint64_t start = Ticks();
      grpc::ClientContext context;
      const grpc::Status status = basics_.put
                                      ? basics_.stub->Put(&context, basics_.request, &put_reply)
                                      : basics_.stub->Echo(&context, basics_.request, &reply);
      if (!status.ok()) return FromGrpc(status);
      window.AddLatency(Ticks() - start);
      window.AddBytes(basics_.request.payload().size());
    }
    return absl::OkStatus();
  }
  ClientBasics basics_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Service>> StartSyncService(const Params& params) {
  return ServiceOf<Handlers>::Start(params);
}

absl::StatusOr<std::unique_ptr<Workload>> StartSyncWorkload(const Params& params) {
  return ConnectedWorkload<SyncWorkload>(params);
}

}  // namespace verbena::benchmarks
