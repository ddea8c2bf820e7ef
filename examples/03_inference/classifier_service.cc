#include "examples/03_inference/classifier_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::examples {

absl::StatusOr<std::unique_ptr<ClassifierService>> ClassifierService::Create(
    std::vector<PulledTensor> weights) {
  std::vector<NamedTensor> named;
  for (const PulledTensor& weight : weights) {
    absl::StatusOr<absl::Span<const float>> values = weight.tensor.Values<float>();
    if (!values.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("tensor ", weight.name, ": ", values.status().message()));
    }
    const Shape& shape = weight.tensor.shape();
    named.push_back({weight.name, {shape.begin(), shape.end()}, *values});
  }
  VERBENA_ASSIGN_OR_RETURN(Network network, Network::Create(named));
  // The tensors' memory stays where it is when the vector moves.
  return std::unique_ptr<ClassifierService>(
      new ClassifierService(std::move(weights), std::move(network)));
}

ClassifierService::ClassifierService(std::vector<PulledTensor> weights, Network network)
    : weights_(std::move(weights)), network_(std::move(network)) {}

Task<absl::Status> ClassifierService::Classify(ServerContext&,
                                               const Parcel<inference::ClassifyRequest>& request,
                                               inference::ClassifyReply& reply) {
  VERBENA_CO_RETURN_IF_ERROR(CheckImages(request->images()));
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor images, co_await request.Fetch(request->images()));
  co_return Evaluate(images, reply);
}

// Before a byte is pulled: the description is the client's word.
absl::Status ClassifierService::CheckImages(const v1::Tensor& images) const {
  if (images.dtype() != kFloat32.word() || images.shape_size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("images of dtype ", images.dtype(), " and ",
                                                   images.shape_size(),
                                                   " dimensions, expected float32 and 2"));
  }
  if (images.shape(0) < 1 || images.shape(0) > kBatchMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(images.shape(0), " images, allowed are 1 to ", kBatchMax));
  }
  if (images.shape(1) != static_cast<int64_t>(network_.inputs())) {
    return absl::InvalidArgumentError(
        absl::StrCat(images.shape(1), " pixels per image, the network takes ", network_.inputs()));
  }
  return absl::OkStatus();
}

absl::Status ClassifierService::Evaluate(const Tensor& images,
                                         inference::ClassifyReply& reply) const {
  VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> pixels, images.Values<float>());
  const size_t scores = pixels.size() / network_.inputs() * network_.outputs();
  reply.mutable_scores()->Resize(static_cast<int>(scores), 0);
  reply.set_classes(static_cast<uint32_t>(network_.outputs()));
  return network_.Forward(pixels, absl::MakeSpan(reply.mutable_scores()->mutable_data(), scores));
}

}  // namespace verbena::examples
