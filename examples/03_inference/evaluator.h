#pragma once
// Runs a network where its weights are: on the host by the CPU, on a GPU by a kernel.
#include <memory>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/types/span.h"
#include "examples/03_inference/network.h"
#include "examples/03_inference/pull.h"
#include "examples/common/gpu.h"
#include "verbena/verbena.h"

namespace verbena::examples {

class Evaluator {
 public:
  // Keeps `weights`, which are in memory of `gpu`, or of the host where that is null. Errors:
  // INVALID_ARGUMENT when they are no perceptron of float32 layers.
  static absl::StatusOr<std::unique_ptr<Evaluator>> Create(std::vector<PulledTensor> weights,
                                                           std::shared_ptr<const Gpu> gpu);

  const Network& network() const { return network_; }
  Device device() const { return gpu_ == nullptr ? Device::Host() : gpu_->device(); }

  // Activations, and on a GPU what its queued work still uses: keep all of it until the work has
  // ended.
  struct Activations {
    Tensor tensor;  // float32 [rows, width]; on a GPU said to come after the work
    std::vector<Tensor> used;
  };
  // Layers [begin, end) of `x`, float32 [rows, inputs of `begin`] on device(). On a GPU it queues
  // the work and returns. Any thread.
  absl::StatusOr<Activations> Run(size_t begin, size_t end, Tensor x) const;
  // The numbers of what Run gave; waits for it.
  absl::Status CopyOut(const Activations& from, absl::Span<float> to) const;
  // Waits for whatever is queued: then nothing uses what Run gave.
  absl::Status Wait() const;

 private:
  Evaluator(std::vector<PulledTensor> weights, Network network, std::shared_ptr<const Gpu> gpu)
      : weights_(std::move(weights)), network_(std::move(network)), gpu_(std::move(gpu)) {}
  absl::Status RunOne(size_t index, const Tensor& x, Tensor& y) const;

  const std::vector<PulledTensor> weights_;  // network_ refers to their memory
  const Network network_;
  const std::shared_ptr<const Gpu> gpu_;
};

}  // namespace verbena::examples
