#include "examples/03_inference/classifier_service.h"

#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::examples {
namespace {

// Of a server that has a next one.
constexpr size_t kOwnLayers = 1;

}  // namespace

absl::StatusOr<std::unique_ptr<ClassifierService>> ClassifierService::Create(
    std::vector<PulledTensor> weights, std::shared_ptr<const Gpu> gpu,
    std::shared_ptr<Channel> next) {
  VERBENA_ASSIGN_OR_RETURN(auto evaluator, Evaluator::Create(std::move(weights), std::move(gpu)));
  if (next != nullptr && evaluator->network().layer_count() <= kOwnLayers) {
    return absl::InvalidArgumentError("no layer is left for the next server");
  }
  return std::unique_ptr<ClassifierService>(
      new ClassifierService(std::move(evaluator), std::move(next)));
}

ClassifierService::ClassifierService(std::unique_ptr<Evaluator> evaluator,
                                     std::shared_ptr<Channel> next)
    : evaluator_(std::move(evaluator)),
      next_(next == nullptr ? nullptr
                            : std::make_unique<inference::Classifier::Stub>(std::move(next))) {}

Task<absl::Status> ClassifierService::Classify(ServerContext& context,
                                               const Parcel<inference::ClassifyRequest>& request,
                                               inference::ClassifyReply& reply) {
  VERBENA_CO_RETURN_IF_ERROR(CheckInput(request->images(), 0, "pixels per image"));
  // Straight to where the weights are.
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor images,
                              co_await request.Fetch(request->images(), evaluator_->device()));
  if (next_ != nullptr) co_return co_await Forward(context, std::move(images), reply);
  co_return Finish(0, std::move(images), reply);
}

Task<absl::Status> ClassifierService::Continue(ServerContext&,
                                               const Parcel<inference::ContinueRequest>& request,
                                               inference::ClassifyReply& reply) {
  if (request->layer() >= evaluator_->network().layer_count()) {
    co_return absl::InvalidArgumentError(
        absl::StrCat("layer ", request->layer(), " of ", evaluator_->network().layer_count()));
  }
  VERBENA_CO_RETURN_IF_ERROR(CheckInput(request->activations(), request->layer(), "activations"));
  VERBENA_CO_ASSIGN_OR_RETURN(Tensor input,
                              co_await request.Fetch(request->activations(), evaluator_->device()));
  co_return Finish(request->layer(), std::move(input), reply);
}

// Before a byte is pulled: the description is the client's word.
absl::Status ClassifierService::CheckInput(const v1::Tensor& input, size_t layer,
                                           const char* unit) const {
  if (input.dtype() != kFloat32.word() || input.shape_size() != 2) {
    return absl::InvalidArgumentError(absl::StrCat("images of dtype ", input.dtype(), " and ",
                                                   input.shape_size(),
                                                   " dimensions, expected float32 and 2"));
  }
  if (input.shape(0) < 1 || input.shape(0) > kBatchMax) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.shape(0), " images, allowed are 1 to ", kBatchMax));
  }
  const size_t inputs = evaluator_->network().layer(layer).inputs;
  if (input.shape(1) != static_cast<int64_t>(inputs)) {
    return absl::InvalidArgumentError(
        absl::StrCat(input.shape(1), " ", unit, ", the network takes ", inputs));
  }
  return absl::OkStatus();
}

// The first layer here, the others there. On a GPU nobody waits for the layer: its activations are
// leased when the stream has computed them, and the other server's GPU pulls them.
Task<absl::Status> ClassifierService::Forward(ServerContext& context, Tensor images,
                                              inference::ClassifyReply& reply) const {
  VERBENA_CO_ASSIGN_OR_RETURN(const Evaluator::Activations activations,
                              evaluator_->Run(0, kOwnLayers, std::move(images)));
  Parcel<inference::ContinueRequest> request;
  request->set_layer(kOwnLayers);
  request.Attach(*request->mutable_activations(), activations.tensor);
  auto call = next_->Continue(request, CallOptions::FromContext(context));
  absl::StatusOr<inference::ClassifyReply> rest = co_await call;
  if (rest.ok()) {
    reply = *std::move(rest);
    co_return absl::OkStatus();
  }
  // It may not have waited for the layer, whose memory goes now.
  VERBENA_CO_RETURN_IF_ERROR(evaluator_->Wait());
  co_return rest.status();
}

absl::Status ClassifierService::Finish(size_t layer, Tensor input,
                                       inference::ClassifyReply& reply) const {
  const Network& network = evaluator_->network();
  const size_t scores = static_cast<size_t>(input.shape()[0]) * network.outputs();
  VERBENA_ASSIGN_OR_RETURN(const Evaluator::Activations last,
                           evaluator_->Run(layer, network.layer_count(), std::move(input)));
  reply.mutable_scores()->Resize(static_cast<int>(scores), 0);
  reply.set_classes(static_cast<uint32_t>(network.outputs()));
  return evaluator_->CopyOut(last, absl::MakeSpan(reply.mutable_scores()->mutable_data(), scores));
}

}  // namespace verbena::examples
