#include "examples/03_inference/network.h"

#include <algorithm>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/string_view.h"

namespace verbena::examples {
namespace {

const NamedTensor* Find(absl::Span<const NamedTensor> tensors, absl::string_view name) {
  for (const NamedTensor& tensor : tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

absl::Status CheckShape(const NamedTensor& tensor, size_t rank) {
  const std::string shape =
      absl::StrCat("tensor ", tensor.name, " [", absl::StrJoin(tensor.shape, ", "), "]");
  if (tensor.shape.size() != rank)
    return absl::InvalidArgumentError(absl::StrCat(shape, ": expected rank ", rank));
  uint64_t elements = 1;  // At most kLayerWidthMax squared: does not wrap.
  for (int64_t dimension : tensor.shape) {
    if (dimension < 1 || dimension > kLayerWidthMax) {
      return absl::InvalidArgumentError(
          absl::StrCat(shape, ": dimension ", dimension, ", allowed are 1 to ", kLayerWidthMax));
    }
    elements *= static_cast<uint64_t>(dimension);
  }
  if (elements != tensor.values.size()) {
    return absl::InvalidArgumentError(
        absl::StrCat(shape, " came with ", tensor.values.size(), " values"));
  }
  return absl::OkStatus();
}

// One row through one layer.
void Apply(absl::Span<const float> weight, absl::Span<const float> bias, const float* x,
           size_t inputs, bool relu, float* y) {
  for (size_t row = 0; row < bias.size(); ++row) {
    const float* w = weight.data() + row * inputs;
    float sum = bias[row];
    for (size_t column = 0; column < inputs; ++column) sum += w[column] * x[column];
    y[row] = relu ? std::max(sum, 0.0f) : sum;
  }
}

}  // namespace

absl::StatusOr<Network> Network::Create(absl::Span<const NamedTensor> tensors) {
  Network network;
  while (Find(tensors, absl::StrCat("layers.", network.layers_.size(), ".weight")) != nullptr) {
    absl::StatusOr<Layer> layer = MakeLayer(tensors, network.layers_.size());
    if (!layer.ok()) return layer.status();
    if (!network.layers_.empty() && layer->inputs != network.layers_.back().outputs) {
      return absl::InvalidArgumentError(
          absl::StrCat("layer ", network.layers_.size(), " takes ", layer->inputs,
                       " inputs, the layer before it gives ", network.layers_.back().outputs));
    }
    network.layers_.push_back(*layer);
  }
  if (network.layers_.empty())
    return absl::InvalidArgumentError("there is no tensor layers.0.weight");
  if (tensors.size() != 2 * network.layers_.size()) {
    return absl::InvalidArgumentError(absl::StrCat(network.layers_.size(), " layers are ",
                                                   2 * network.layers_.size(),
                                                   " tensors, but there are ", tensors.size()));
  }
  return network;
}

absl::StatusOr<Network::Layer> Network::MakeLayer(absl::Span<const NamedTensor> tensors,
                                                  size_t index) {
  const NamedTensor* weight = Find(tensors, absl::StrCat("layers.", index, ".weight"));
  const NamedTensor* bias = Find(tensors, absl::StrCat("layers.", index, ".bias"));
  if (bias == nullptr)
    return absl::InvalidArgumentError(absl::StrCat("there is no tensor layers.", index, ".bias"));
  if (absl::Status s = CheckShape(*weight, 2); !s.ok()) return s;
  if (absl::Status s = CheckShape(*bias, 1); !s.ok()) return s;
  if (bias->shape[0] != weight->shape[0]) {
    return absl::InvalidArgumentError(absl::StrCat("tensor ", bias->name, " has ", bias->shape[0],
                                                   " entries, its layer has ", weight->shape[0],
                                                   " outputs"));
  }
  Layer layer;
  layer.inputs = static_cast<size_t>(weight->shape[1]);
  layer.outputs = static_cast<size_t>(weight->shape[0]);
  layer.weight = weight->values;
  layer.bias = bias->values;
  return layer;
}

absl::Status Network::Forward(size_t begin, size_t end, absl::Span<const float> x,
                              absl::Span<float> y) const {
  const absl::Span<const Layer> layers = absl::MakeConstSpan(layers_).subspan(begin, end - begin);
  const size_t inputs = layers.front().inputs, outputs = layers.back().outputs;
  const size_t rows = x.size() / inputs;
  if (x.size() != rows * inputs || y.size() != rows * outputs) {
    return absl::InvalidArgumentError(absl::StrCat(x.size(), " inputs and room for ", y.size(),
                                                   " scores; a row has ", inputs, " and ",
                                                   outputs));
  }
  size_t widest = 0;
  for (const Layer& layer : layers) widest = std::max(widest, layer.outputs);
  std::vector<float> from(widest), to(widest);
  for (size_t row = 0; row < rows; ++row) {
    const float* in = x.data() + row * inputs;
    for (const Layer& layer : layers) {
      float* out = &layer == &layers.back() ? y.data() + row * outputs : to.data();
      Apply(layer.weight, layer.bias, in, layer.inputs, &layer != &layers_.back(), out);
      from.swap(to);
      in = from.data();
    }
  }
  return absl::OkStatus();
}

size_t BestOf(absl::Span<const float> scores) {
  return static_cast<size_t>(std::max_element(scores.begin(), scores.end()) - scores.begin());
}

}  // namespace verbena::examples
