#pragma once
// A multi-layer perceptron, evaluated in plain C++: each layer is weight * x + bias, with ReLU
// between the layers and nothing after the last one (its outputs are scores; the largest is the
// answer).
//
//   absl::StatusOr<Network> network = Network::Create(named_tensors);
//   network->Forward(pixels, scores);
#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/types/span.h"

namespace verbena::examples {

// Larger than any layer here; a hostile file must not choose how much Forward() allocates.
inline constexpr int64_t kLayerWidthMax = 65'536;

struct NamedTensor {
  std::string name;
  std::vector<int64_t> shape;
  // Row-major; not owned. Only Forward looks at them: they may be in a GPU's memory.
  absl::Span<const float> values;
};

class Network {
 public:
  // Builds the network from "layers.N.weight" [outputs, inputs] and "layers.N.bias" [outputs], N
  // from 0 without a gap. The network refers to the tensors' values: they must stay valid and
  // unchanged as long as it is used. Errors: INVALID_ARGUMENT naming the tensor that is missing,
  // has another shape than its neighbours need, or belongs to no layer.
  static absl::StatusOr<Network> Create(absl::Span<const NamedTensor> tensors);

  size_t inputs() const { return layers_.front().inputs; }
  size_t outputs() const { return layers_.back().outputs; }
  size_t layer_count() const { return layers_.size(); }
  struct Layer {
    size_t inputs = 0;
    size_t outputs = 0;
    absl::Span<const float> weight;
    absl::Span<const float> bias;
  };
  const Layer& layer(size_t index) const { return layers_[index]; }

  // Evaluates `x`, rows of inputs() numbers, into `scores`, as many rows of outputs(). Any thread.
  // Cost: two allocations; two floating-point operations per weight and row.
  // Errors: INVALID_ARGUMENT when the sizes are not those.
  absl::Status Forward(absl::Span<const float> x, absl::Span<float> scores) const {
    return Forward(0, layers_.size(), x, scores);
  }
  // The same for layers [begin, end) alone, of which there is at least one.
  absl::Status Forward(size_t begin, size_t end, absl::Span<const float> x,
                       absl::Span<float> y) const;

 private:
  static absl::StatusOr<Layer> MakeLayer(absl::Span<const NamedTensor> tensors, size_t index);

  std::vector<Layer> layers_;
};

// The place of the largest score; the first of equals. `scores` is not empty.
size_t BestOf(absl::Span<const float> scores);

}  // namespace verbena::examples
