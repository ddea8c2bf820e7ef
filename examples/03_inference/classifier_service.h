#pragma once
// Runs a network whose weights were pulled from a weights server: all of it, or its first layer,
// and has another server go on from there.
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/03_inference/evaluator.h"
#include "inference.verbena.h"
#include "verbena/verbena.h"

namespace verbena::examples {

// Images of one request. Evaluating a thousand takes this network about 10 ms, for which the
// reactor is held.
inline constexpr int64_t kBatchMax = 1024;

class ClassifierService final : public inference::Classifier::Service {
 public:
  // Keeps `weights`, in memory of `gpu` or, where that is null, of the host. With `next`, the
  // layers after the first are run there. Errors: INVALID_ARGUMENT when the weights are no
  // perceptron of float32 layers, or of one layer and there is a next server.
  static absl::StatusOr<std::unique_ptr<ClassifierService>> Create(
      std::vector<PulledTensor> weights, std::shared_ptr<const Gpu> gpu = nullptr,
      std::shared_ptr<Channel> next = nullptr);

  // Errors: INVALID_ARGUMENT when the images are not float32 [1 to kBatchMax, inputs of the
  // network]; what the next server says.
  Task<absl::Status> Classify(ServerContext& context,
                              const Parcel<inference::ClassifyRequest>& request,
                              inference::ClassifyReply& reply) override;
  // Errors: INVALID_ARGUMENT when there is no such layer, or the activations do not fit it.
  Task<absl::Status> Continue(ServerContext& context,
                              const Parcel<inference::ContinueRequest>& request,
                              inference::ClassifyReply& reply) override;

 private:
  ClassifierService(std::unique_ptr<Evaluator> evaluator, std::shared_ptr<Channel> next);
  absl::Status CheckInput(const v1::Tensor& input, size_t layer, const char* unit) const;
  Task<absl::Status> Forward(ServerContext& context, Tensor images,
                             inference::ClassifyReply& reply) const;
  absl::Status Finish(size_t layer, Tensor input, inference::ClassifyReply& reply) const;

  const std::unique_ptr<Evaluator> evaluator_;
  const std::unique_ptr<inference::Classifier::Stub> next_;  // null: this server runs all layers
};

}  // namespace verbena::examples
