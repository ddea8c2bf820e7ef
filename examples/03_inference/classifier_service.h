#pragma once
// Runs a network whose weights were pulled from a weights server.
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "examples/03_inference/network.h"
#include "examples/03_inference/pull.h"
#include "inference.verbena.h"
#include "verbena/verbena.h"

namespace verbena::examples {

// Images of one request. Evaluating a thousand takes this network about 10 ms, for which the
// reactor is held.
inline constexpr int64_t kBatchMax = 1024;

class ClassifierService final : public inference::Classifier::Service {
 public:
  // Keeps `weights`. Errors: INVALID_ARGUMENT when they are no perceptron of float32 layers.
  static absl::StatusOr<std::unique_ptr<ClassifierService>> Create(
      std::vector<PulledTensor> weights);

  // Errors: INVALID_ARGUMENT when the images are not float32 [1 to kBatchMax, inputs of the
  // network].
  Task<absl::Status> Classify(ServerContext& context,
                              const Parcel<inference::ClassifyRequest>& request,
                              inference::ClassifyReply& reply) override;

 private:
  ClassifierService(std::vector<PulledTensor> weights, Network network);
  absl::Status CheckImages(const v1::Tensor& images) const;
  absl::Status Evaluate(const Tensor& images, inference::ClassifyReply& reply) const;

  const std::vector<PulledTensor> weights_;  // network_ refers to their memory.
  const Network network_;
};

}  // namespace verbena::examples
