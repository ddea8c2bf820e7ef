// Keeps a tensor on the first GPU and leases it to who asks.  server ADDRESS
#include <cstdio>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "examples/common/gpu.h"
#include "examples/common/termination.h"
#include "keeper.verbena.h"
#include "verbena/verbena.h"

namespace {

constexpr int64_t kRows = 4096, kColumns = 4096;

class KeeperImpl final : public keeper::Keeper::Service {
 public:
  KeeperImpl(verbena::Tensor tensor, std::string where)
      : tensor_(std::move(tensor)), where_(std::move(where)) {}

  verbena::Task<absl::Status> Get(verbena::ServerContext&, const keeper::GetRequest&,
                                  verbena::Parcel<keeper::GetReply>& reply) override {
    reply->set_where(where_);
    // Not copied, and not touched by a CPU: a lease of the GPU's memory goes out. Work that still
    // writes it would be named here: tensor_.After(verbena::DeviceStream(stream)).
    reply.Attach(*reply->mutable_tensor(), tensor_);
    co_return absl::OkStatus();
  }

 private:
  const verbena::Tensor tensor_;
  const std::string where_;
};

absl::Status Serve(const char* address) {
  // Without this call nothing of the program knows of GPUs, and none is touched.
  const absl::StatusOr<int> gpus = verbena::examples::UseAllGpus();
  const verbena::Device device = gpus.ok() ? verbena::Device::Cuda(0) : verbena::Device::Host();
  std::vector<float> values(kRows * kColumns);
  for (size_t i = 0; i < values.size(); ++i) values[i] = static_cast<float>(i % 1000);
  VERBENA_ASSIGN_OR_RETURN(
      verbena::Tensor tensor,
      verbena::Tensor::Copy<float>(values, verbena::Shape(kRows, kColumns), device));
  KeeperImpl keeper(std::move(tensor), gpus.ok() ? "cuda:0" : "host memory");
  VERBENA_ASSIGN_OR_RETURN(
      auto server,
      verbena::Server::Start(verbena::ServerOptions().set_listen(address).add_service(keeper)));
  std::printf(
      "serving keeper.Keeper on %s: a tensor in %s\n", address,
      gpus.ok() ? "cuda:0" : absl::StrCat("host memory: ", gpus.status().message()).c_str());
  std::fflush(stdout);
  verbena::examples::WaitForTermination();
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: server ADDRESS\n");
    return 2;
  }
  const absl::Status status = Serve(argv[1]);
  if (!status.ok()) std::fprintf(stderr, "server: %s\n", status.ToString().c_str());
  return status.ok() ? 0 : 1;
}
