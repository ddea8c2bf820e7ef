#include "examples/03_inference/evaluator.h"

#include <algorithm>
#include <cstdint>
#include <utility>

#include "absl/strings/str_cat.h"

namespace verbena::examples {
namespace {

constexpr unsigned kThreads = 128;

// A pulled tensor's elements: where they are, whoever may touch them.
absl::StatusOr<NamedTensor> Named(const PulledTensor& weight, Device device) {
  const Tensor& tensor = weight.tensor;
  if (!(tensor.dtype() == kFloat32) || !tensor.contiguous() || !(tensor.device() == device)) {
    return absl::InvalidArgumentError(
        absl::StrCat("tensor ", weight.name, ": ", tensor.DebugString(), " is no float32 there"));
  }
  const auto* const values = reinterpret_cast<const float*>(tensor.data());
  const Shape& shape = tensor.shape();
  return NamedTensor{
      weight.name, {shape.begin(), shape.end()}, {values, static_cast<size_t>(tensor.elements())}};
}

}  // namespace

absl::StatusOr<std::unique_ptr<Evaluator>> Evaluator::Create(std::vector<PulledTensor> weights,
                                                             std::shared_ptr<const Gpu> gpu) {
  const Device device = gpu == nullptr ? Device::Host() : gpu->device();
  std::vector<NamedTensor> named;
  for (const PulledTensor& weight : weights) {
    VERBENA_ASSIGN_OR_RETURN(NamedTensor tensor, Named(weight, device));
    named.push_back(std::move(tensor));
  }
  VERBENA_ASSIGN_OR_RETURN(Network network, Network::Create(named));
  // The tensors' memory stays where it is when the vector moves.
  return std::unique_ptr<Evaluator>(
      new Evaluator(std::move(weights), std::move(network), std::move(gpu)));
}

absl::StatusOr<Evaluator::Activations> Evaluator::Run(size_t begin, size_t end, Tensor x) const {
  // All memory first: once work is queued, nothing that it uses may be let go.
  Activations result;
  const int64_t rows = x.shape()[0];
  result.used.push_back(std::move(x));
  for (size_t i = begin; i < end; ++i) {
    VERBENA_ASSIGN_OR_RETURN(
        Tensor y, Tensor::Empty(kFloat32, Shape(rows, network_.layer(i).outputs), device()));
    result.used.push_back(std::move(y));
  }
  for (size_t i = begin; i < end; ++i) {
    VERBENA_RETURN_IF_ERROR(RunOne(i, result.used[i - begin], result.used[i - begin + 1]));
  }
  result.tensor = result.used.back();
  if (gpu_ != nullptr) {
    VERBENA_ASSIGN_OR_RETURN(result.tensor, result.tensor.After(gpu_->stream()));
  }
  return result;
}

absl::Status Evaluator::RunOne(size_t index, const Tensor& x, Tensor& y) const {
  if (gpu_ == nullptr) {
    VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> in, x.Values<float>());
    VERBENA_ASSIGN_OR_RETURN(absl::Span<float> out, y.MutableValues<float>());
    return network_.Forward(index, index + 1, in, out);
  }
  const Network::Layer& layer = network_.layer(index);
  const auto outputs = static_cast<unsigned>(y.elements());
  return gpu_->Launch("dense", (outputs + kThreads - 1) / kThreads, kThreads, y.mutable_data(),
                      x.data(), layer.weight.data(), layer.bias.data(),
                      static_cast<uint32_t>(x.shape()[0]), static_cast<uint32_t>(layer.inputs),
                      static_cast<uint32_t>(layer.outputs),
                      uint32_t{index + 1 < network_.layer_count()});
}

absl::Status Evaluator::Wait() const {
  return gpu_ == nullptr ? absl::OkStatus() : gpu_->Synchronize();
}

absl::Status Evaluator::CopyOut(const Activations& from, absl::Span<float> to) const {
  if (from.tensor.bytes() != to.size() * sizeof(float)) {
    return absl::InvalidArgumentError(
        absl::StrCat(from.tensor.DebugString(), " into ", to.size(), " numbers"));
  }
  if (gpu_ != nullptr) return gpu_->CopyToHost(to.data(), from.tensor.data(), from.tensor.bytes());
  VERBENA_ASSIGN_OR_RETURN(absl::Span<const float> values, from.tensor.Values<float>());
  std::copy(values.begin(), values.end(), to.begin());
  return absl::OkStatus();
}

}  // namespace verbena::examples
