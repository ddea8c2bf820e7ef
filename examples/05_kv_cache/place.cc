#include "examples/05_kv_cache/place.h"

#include "absl/strings/str_cat.h"
#include "examples/05_kv_cache/kernels.h"

namespace verbena::examples {

absl::StatusOr<Place> Place::Find(int wanted) {
  Place place;
  const absl::StatusOr<int> gpus = UseAllGpus();
  if (!gpus.ok() && GpuRequired()) return gpus.status();
  if (!gpus.ok()) {
    place.description = absl::StrCat("host memory, since ", gpus.status().message());
    return place;
  }
  VERBENA_ASSIGN_OR_RETURN(place.gpu, Gpu::Open(wanted % *gpus, kKernels));
  place.device = place.gpu->device();
  place.description = absl::StrCat("cuda:", place.device.index(), ", ", place.gpu->name());
  return place;
}

}  // namespace verbena::examples
