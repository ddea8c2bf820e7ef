#include "verbena/stream.h"

namespace verbena::internal {

absl::Status StreamRef::status() const {
  return absl::UnimplementedError("streaming calls are not carried by this version of the runtime");
}

}  // namespace verbena::internal
