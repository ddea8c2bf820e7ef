#pragma once
// Serves the tensors of a .safetensors file out of its mapping: what leaves this process is what
// the peer's READs take from the page cache.
//
//   absl::StatusOr<safetensors::File> file = safetensors::File::Open(path);
//   WeightsService service(*std::move(file));
//   Server::Start(ServerOptions().set_listen(address).add_service(service));
#include "absl/container/flat_hash_map.h"
#include "examples/03_inference/safetensors.h"
#include "inference.verbena.h"
#include "verbena/verbena.h"

namespace verbena::examples {

class WeightsService final : public inference::Weights::Service {
 public:
  // Reads the whole file once, for the digests: 0.4 to 2 GB/s.
  explicit WeightsService(safetensors::File file);

  Task<absl::Status> List(ServerContext& context, const inference::ListRequest& request,
                          inference::ListReply& reply) override;
  // Errors: NOT_FOUND; FAILED_PRECONDITION when the file was changed since it was opened.
  Task<absl::Status> Pull(ServerContext& context, const inference::PullRequest& request,
                          Parcel<inference::PullReply>& reply) override;

 private:
  // Shared with data_: a lease may outlive the service.
  std::shared_ptr<const safetensors::File> file_;
  // All of the file's data. One Buffer, so that it is registered once and not once per Pull.
  Buffer data_;
  inference::ListReply list_;
  absl::flat_hash_map<std::string, const safetensors::TensorInfo*> tensors_;
};

}  // namespace verbena::examples
