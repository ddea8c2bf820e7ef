#pragma once
// Where a server keeps its pages: a GPU's memory where a GPU is, else the host's.
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "examples/common/gpu.h"
#include "verbena/verbena.h"

namespace verbena::examples {

struct Place {
  std::unique_ptr<Gpu> gpu;  // null: the host
  Device device;
  std::string description;

  // GPU `wanted` of those there are, counted round. Not OK only if a GPU is there and does not
  // work.
  static absl::StatusOr<Place> Find(int wanted);
};

}  // namespace verbena::examples
