// The server of every row: echo, a large field, and tensors from pool memory or from memory of the
// program's own.
#include <cstring>
#include <map>

#include "absl/strings/str_cat.h"
#include "benchmarks/harness/huge_memory.h"
#include "benchmarks/verbena/verbena_peer.h"

namespace verbena::benchmarks {
namespace {

class EchoService final : public pb::Benchmark::Service {
  Task<absl::Status> Echo(ServerContext&, const pb::EchoMessage& request,
                          pb::EchoMessage& reply) override {
    reply.set_payload(request.payload());
    return absl::OkStatus();
  }
  Task<absl::Status> Put(ServerContext&, const pb::EchoMessage& request,
                         pb::PutReply& reply) override {
    reply.set_bytes(request.payload().size());
    return absl::OkStatus();
  }
};

// Makes each tensor at its first request and serves the same one ever after, as weights are.
class TensorService final : public pb::TensorBenchmark::Service {
  Task<absl::Status> GetTensor(ServerContext&, const pb::TensorRequest& request,
                               Parcel<pb::TensorReply>& reply) override {
    auto& tensors = request.user_memory() ? user_ : pool_;
    Tensor& tensor = tensors[request.bytes()];
    if (tensor.bytes() == 0) {
      auto made =
          request.user_memory() ? FromUserMemory(request.bytes()) : FromPool(request.bytes());
      if (!made.ok()) return made.status();
      tensor = *std::move(made);
    }
    reply.Attach(*reply->mutable_tensor(), tensor);
    return absl::OkStatus();
  }
  static absl::StatusOr<Tensor> FromPool(uint64_t bytes) {
    auto tensor = Tensor::Empty(kUInt8, Shape(static_cast<int64_t>(bytes)));
    if (tensor.ok()) std::memset(tensor->mutable_data(), 1, bytes);
    return tensor;
  }
  static absl::StatusOr<Tensor> FromUserMemory(uint64_t bytes) {
    auto memory = std::make_shared<HugeMemory>(bytes);
    void* data = memory->data();
    return Tensor::Wrap(Buffer::Wrap(data, bytes, [memory]() mutable { memory.reset(); }), kUInt8,
                        Shape(static_cast<int64_t>(bytes)));
  }
  std::map<uint64_t, Tensor> pool_;
  std::map<uint64_t, Tensor> user_;
};

class VerbenaService final : public Service {
 public:
  explicit VerbenaService(std::string address) : address_(std::move(address)) {}
  absl::Status Start() {
    auto server = Server::Start(
        ServerOptions().set_listen(address_).add_service(echo_).add_service(tensors_));
    if (!server.ok()) return server.status();
    server_ = *std::move(server);
    return absl::OkStatus();
  }
  std::string address() const override { return address_; }

 private:
  std::string address_;
  EchoService echo_;
  TensorService tensors_;
  std::unique_ptr<Server> server_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<Service>> StartVerbenaService(const Params&) {
  auto service = std::make_unique<VerbenaService>(absl::StrCat("127.0.0.1:", FreePort()));
  if (absl::Status s = service->Start(); !s.ok()) return s;
  return service;
}

}  // namespace verbena::benchmarks
